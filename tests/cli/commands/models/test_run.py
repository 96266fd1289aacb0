"""`p2pcache run` becomes the command, with a model's directory in the ref's place."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.cluster import clean_environ
from p2pcache.agent.embedded import run_embedded
from p2pcache.cli.commands.models import run as module
from tests.agent.kit import make_model, push
from tests.cli.conftest import Run
from tests.loader.loader_kit import Spec, write
from tests.loader.source.agent_kit import agent_settings

# Signals that Python ignores and no other program expects to be, as the kernel writes them.
_OF_PYTHON = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
# An engine that says how it was started, and which signals it ignores; then it does as it's told.
ENGINE = """#!/bin/sh
grep SigIgn /proc/$$/status
exec {python} -c '
import json, os, signal, sys, time
where = ""
if "--load-format" in sys.argv:
    from p2pcache.loader.integrations.weights import EngineSettings, find_weights
    where = str(find_weights(sys.argv[3], EngineSettings()))  # as the plugin does it
print(json.dumps({{"argv": sys.argv[1:], "pid": os.getpid(), "agent": os.environ.get("P2PCACHE_AGENT"), "where": where,
    "alarm": signal.getitimer(signal.ITIMER_REAL)[0]}}), flush=True)
if "--wait" in sys.argv:
    time.sleep(30)
sys.exit(42)
' "$0" "$@"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with the program `vllm`, and an agent that has yet to fetch a model."""
    root = tmp_path_factory.mktemp("run")
    (root / "model").mkdir()
    make_model(root / "model", {"config.json": b"{}"})
    write(root / "model" / "model.safetensors", [Spec("w", "BF16", (512, 512))])
    push(root / "origin", root / "model", "team/m:v1")
    engine = root / "bin" / "vllm"
    engine.parent.mkdir()
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    with run_embedded(agent_settings(root, root / "origin")) as socket:
        yield root, f"unix://{socket}"


def started(root: Path, *args: str) -> "subprocess.Popen[str]":
    environ = clean_environ(root)
    environ["PATH"] = f"{root / 'bin'}:{environ.get('PATH', os.defpath)}"
    return subprocess.Popen([sys.executable, "-m", "p2pcache.cli.main", "run", *args], env=environ,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.mark.functional
def test_the_engine_takes_the_place_of_the_command(place: tuple[Path, str]) -> None:
    root, agent = place
    process = started(root, "--agent", agent, "--timeout", "50", "--stream", "--",
                      "vllm", "serve", "Team/M:v1", "--port", "80")  # fmt: skip
    out, err = process.communicate(timeout=30)
    assert process.returncode == 42, err
    ignored, line = out.splitlines()
    told = json.loads(line)
    assert told["pid"] == process.pid
    program, serve, directory, *more = told["argv"]
    assert (program, serve) == (str(root / "bin" / "vllm"), "serve")
    assert [path.name for path in Path(directory).iterdir()] == [
        "config.json"
    ]  # the weights are streamed
    assert more == ["--port", "80", "--served-model-name", "Team/M", "--load-format", "p2pcache"]
    assert (told["agent"], told["alarm"]) == (agent, 0)
    assert int(ignored.split()[1], 16) & _OF_PYTHON == 0
    assert told["where"].startswith("team/m@blake3:")  # the engine needs no further setting
    assert "pulled team/m:v1" in err


@pytest.mark.functional
def test_signals_reach_the_engine(place: tuple[Path, str]) -> None:
    root, agent = place
    process = started(root, "-q", "--agent", agent, "--", "vllm", "serve", "team/m:v1", "--wait")
    assert process.stdout is not None
    _, line = process.stdout.readline(), process.stdout.readline()
    told = json.loads(line)
    assert {path.name for path in Path(told["argv"][2]).iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 20


def test_what_can_not_be_started(run: Run, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert "no such command" in (result := run("run", "nobody-has-this", "serve", "team/m")).stderr
    assert result.exit_code == 0  # click's runner: the code is the returned value
    assert run("run", "nobody-has-this", standalone_mode=False).return_value == 127
    assert run("run", plain, standalone_mode=False).return_value == 126


def test_a_model_alone_is_no_command(run: Run) -> None:
    """Others' `run` takes a model and has an engine of its own."""
    assert "p2pcache run -- vllm serve team/m:v1" in run("run", "team/m:v1").stderr
    assert "p2pcache run -- vllm serve team/m" in run("run", "team/m").stderr
    for other in (["nobody-has-this", "x"], ["vlm"], ["./missing.sh"], ["/no/such:1"], ["../m"]):
        said = run("run", "--", *other).stderr
        assert "no such command" in said
        assert "vllm serve" not in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--", "true", "--verbose"], "names no model"),
        (["--compile-cache", "/c", "--", "true", "p2pcache://team/m"], "--compile-cache knows vllm and sglang"),
        (["--stream", "--", "true", "--model", "team/m"], "can't be streamed: no agent runs here"),
        (["--", "true", "p2pcache://a/b/c"], "not a model ref"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_brought(run: Run, args: list[str], said: str) -> None:
    result = run("run", *args)
    assert said in str(result.exception or result.stderr)


def test_the_plugin_is_looked_for_beside_this_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = str(Path(sys.executable).with_name("vllm"))
    assert not module._has_plugin("vllm", beside)  # vLLM isn't installed here
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1")
    assert module._has_plugin("vllm", beside)
    assert not module._has_plugin("vllm", "/elsewhere/bin/vllm")
    (tmp_path / "vllm").symlink_to(beside)  # as in ~/.local/bin
    assert module._has_plugin("vllm", str(tmp_path / "vllm"))
    (tmp_path / "environment").symlink_to(Path(sys.executable).parent)
    assert module._has_plugin("vllm", str(tmp_path / "environment/vllm"))

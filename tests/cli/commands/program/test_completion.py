"""What the Tab key offers, asked by real shells where they are."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent

MODELS = {
    "models": [
        {"ref": "team/llama:v3", "refs": ["team/llama:v3", "llama:latest"]},
        {"ref": "@4f1d", "refs": ["@4f1d"]},  # nameless: no command would take it
    ]
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    assert "_P2PCACHE_COMPLETE" in run("completion", shell).stdout


def test_bash_takes_the_completion_script(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(run("completion", "bash").stdout)
    shell = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/script && complete -p p2pcache"],
        capture_output=True,
        text=True,
    )
    assert shell.returncode == 0
    assert "_p2pcache_completion p2pcache" in shell.stdout


def test_completion_answers_with_commands(run: Run) -> None:
    env = {"_P2PCACHE_COMPLETE": "bash_complete", "COMP_WORDS": "p2pcache pu", "COMP_CWORD": "1"}
    result = run(env=env, prog_name="p2pcache")
    assert result.output.split() == ["plain,pull", "plain,push"]


def asked(run: Run, line: str) -> list[str]:
    importlib.import_module("p2pcache.cli.commands.program.completion")  # as `main` does
    env = {"_P2PCACHE_COMPLETE": "bash_complete", "COMP_LINE": line}
    result = run(env=env, prog_name="p2pcache")
    assert result.stderr == ""
    return result.stdout.split()


def test_refs_of_the_agent(agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.document("GET /v1/models", MODELS)
    monkeypatch.setenv("P2PCACHE_AGENT", agent.address)
    for command in ("pull", "show", "verify", "rm m:v1", "explain", "locate"):
        assert asked(run, f"p2pcache {command} ") == ["plain,llama:latest", "plain,team/llama:v3"]
    assert asked(run, "p2pcache pull team/llama:") == ["plain,team/llama:v3"]
    monkeypatch.setenv("P2PCACHE_AGENT", "unix:///nowhere.sock")
    assert asked(run, "p2pcache pull ") == []  # and not a word on the terminal
    assert len(asked(run, f"p2pcache --agent {agent.address} pull ")) == 2
    assert len(asked(run, f"p2pcache pull --agent {agent.address} ")) == 2


def test_nodes_of_the_cluster(agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"node": "00a1", "name": "gpu-1"},
        {"node": "00a2", "name": "x"},
        {"node": "00a3", "name": "x"},
    ]
    gone = [{"node": "00b1", "name": "gpu-2", "lost": True}, {"node": "00b2"}]
    agent.document("GET /v1/nodes", {"nodes": nodes, "gone": gone})
    agent.document("GET /v1/keeps", {"keeps": [], "drains": [{"node": "00b1", "name": "gpu-2"}]})
    monkeypatch.setenv("P2PCACHE_AGENT", agent.address)
    offered = [f"plain,{word}" for word in ("00a2", "00a3", "00b2", "gpu-1", "gpu-2")]
    assert asked(run, "p2pcache nodes drain ") == offered
    assert asked(run, "p2pcache nodes drain gpu-") == offered[3:]
    assert asked(run, "p2pcache nodes drain --undo ") == ["plain,gpu-2"]
    monkeypatch.setenv("P2PCACHE_AGENT", "unix:///nowhere.sock")
    assert asked(run, "p2pcache nodes drain ") == []


def test_refs_of_a_cache_without_an_agent(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "xdg/p2pcache/models/library/llama"
    folder.mkdir(parents=True)
    (folder / "@ab").mkdir()
    (folder / "v1").symlink_to("@ab")
    assert asked(run, "p2pcache rm ") == ["plain,llama:v1"]
    assert asked(run, f"p2pcache rm --cache-dir {tmp_path}/none ") == []


def test_paths_are_the_shell_s(run: Run) -> None:
    assert asked(run, "p2pcache push ./mo") == ["dir,./mo"]
    assert asked(run, "p2pcache pull m --to x") == ["dir,x"]
    assert asked(run, "p2pcache ls --config x") == ["file,x"]
    assert asked(run, "p2pcache agent --cache-dir x") == ["dir,x"]


SHELLS = {
    "bash": """
        source $1; COMP_WORDBREAKS=$' :'; COMP_LINE="p2pcache rm --cache-dir CACHE llama:"; COMP_POINT=${#COMP_LINE}
        _p2pcache_completion p2pcache; echo "${COMPREPLY[@]}"
    """,
    "fish": "source $argv[1]; complete -C 'p2pcache rm --cache-dir CACHE llama:'",
}


@pytest.mark.parametrize(("shell", "offered"), [("bash", "v1"), ("fish", "llama:v1")])
def test_a_real_shell_completes_behind_a_colon(
    run: Run, tmp_path: Path, shell: str, offered: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    folder = tmp_path / "xdg/p2pcache/models/library/llama"
    folder.mkdir(parents=True)
    (folder / "v1").symlink_to("@ab")
    (tmp_path / "script").write_text(run("completion", shell).stdout)
    (tmp_path / "p2pcache").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m p2pcache.cli.main "$@"\n'
    )
    (tmp_path / "p2pcache").chmod(0o755)
    words = SHELLS[shell].replace("CACHE", f"{tmp_path}/xdg/p2pcache")
    command = [
        shell,
        "-c",
        words,
        *(["-"] if shell == "bash" else []),
        f"{tmp_path}/script",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize(
    ("shell", "code", "offers"), [("bash_complete", 0, "plain,agent\n"), ("foo", 1, "")]
)
def test_a_process_of_its_own_ends_well(shell: str, code: int, offers: str) -> None:
    """A shell that click doesn't know was a bug of ours."""
    env = {"_P2PCACHE_COMPLETE": shell, "COMP_LINE": "p2pcache config show a"}
    command = [sys.executable, "-m", "p2pcache.cli.main"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, offers, "")


@pytest.mark.parametrize(("line", "words"), [
    ("agent --log-level ", ["debug", "info", "warning", "error"]), ("agent --governor o", ["on", "off"]),
    ("tracker --log-format ", ["text", "json"]), ("pull x --link ", ["hard", "symlink"]),
    ("ls -o ", ["wide", "json"]), ("ca issue d n --role ", ["agent", "pusher", "tracker"]),
    ("token create --scope ", ["pull", "push", "admin"]), ("config show ", ["client", "agent", "tracker"]),
    ("compile-cache key m --engine v", ["vllm"]), ("completion ", ["bash", "zsh", "fish"]),
])  # fmt: skip
def test_fixed_words_complete(run: Run, line: str, words: list[str]) -> None:
    assert asked(run, f"p2pcache {line}") == [f"plain,{word}" for word in words]

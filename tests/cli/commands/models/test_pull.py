import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.kit.daemons import wait_until
from p2pcache.agent.embedded import run_embedded
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import NotFound, P2PCacheError, Unreachable, UsageError
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import push
from tests.cli import fake_agent as fakes
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent
from tests.loader.loader_kit import Spec, write


def test_stdout_is_the_directory_alone(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    (tmp_path / "models/library/llama" / f"@{HEX}").mkdir(parents=True)
    agent.stream(
        "POST /v1/pull", [fakes.resolved(), fakes.progress(500), fakes.done(tmp_path / "models")]
    )
    result = run("pull", "llama", "--agent", agent.address)
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path}/models/library/llama/@{HEX}\n"
    assert result.stderr == "pulled llama:latest: 1.00 kB in 2.0s (500 B/s), 60% from peers\n"


def test_quiet_says_nothing_else(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path)])
    assert run("pull", "-q", "llama", "--agent", agent.address).stderr == ""


def test_json_is_one_event_a_line_and_the_last_is_done(
    agent: FakeAgent, run: Run, tmp_path: Path
) -> None:
    agent.stream("POST /v1/pull", [fakes.resolved(), fakes.progress(500), fakes.done(tmp_path)])
    result = run("pull", "--json", "llama", "--agent", agent.address)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["resolved", "progress", "done"]
    assert events[-1]["path"] == f"{tmp_path}/library/llama/@{HEX}"
    assert set(events[-1]) >= {
        "ref",
        "digest",
        "bytes",
        "bytes_origin",
        "bytes_peers",
        "bytes_local",
        "seconds",
    }


def test_a_container_sees_the_models_elsewhere(agent: FakeAgent, run: Run) -> None:
    agent.stream("POST /v1/pull", [fakes.done(Path("/var/lib/p2pcache/models"))])
    result = run("pull", "llama", "--agent", agent.address, env={"P2PCACHE_MODELS_DIR": "/models"})
    assert result.stdout == f"/models/library/llama/@{HEX}\n"
    assert "isn't visible here" in result.stderr


def test_a_complete_model_says_so(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path) | {"bytes_peers": 0, "bytes_origin": 0}])
    assert (
        "llama:latest: already here, 1.00 kB"
        in run("pull", "llama", "--agent", agent.address).stderr
    )


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b", ""])
def test_a_path_outside_the_models_directory_is_refused(
    agent: FakeAgent, run: Run, tmp_path: Path, path: str
) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path) | {"path": path}])
    assert isinstance(run("pull", "llama", "--agent", agent.address).exception, P2PCacheError)


def test_an_error_event_keeps_its_code(agent: FakeAgent, run: Run) -> None:
    agent.stream(
        "POST /v1/pull", [fakes.resolved(), {"event": "error", "code": 3, "message": "no such tag"}]
    )
    result = run("pull", "llama", "--agent", agent.address)
    assert isinstance(result.exception, NotFound)
    assert result.stdout == ""


def test_a_digest_alone_names_a_model(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path)])
    run("pull", f"llama@blake3:{HEX}", "--agent", agent.address, "--force-generation")
    assert json.loads(agent.bodies[0]) == {
        "ref": f"llama@blake3:{HEX}",
        "force_generation": True,
    }


def test_a_pull_needs_an_agent_or_a_storage(run: Run) -> None:
    result = run("pull", "llama")
    assert isinstance(result.exception, UsageError)
    assert "P2PCACHE_ORIGIN" in str(result.exception)


def test_a_bad_ref_is_refused_before_anything_starts(run: Run) -> None:
    assert isinstance(run("pull", "../llama").exception, UsageError)


def test_flags_that_contradict_each_other(agent: FakeAgent, run: Run) -> None:
    both = run("pull", "llama", "--agent", agent.address, "--origin", "file:///x")
    assert "without a daemon" in str(both.exception)
    assert "--to" in run("pull", "llama", "--link", "hard").stderr


def test_the_agent_of_the_environment_is_no_contradiction(
    agent: FakeAgent, run: Run, tmp_path: Path
) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path)])
    env = {"P2PCACHE_AGENT": agent.address, "P2PCACHE_ORIGIN": "file:///x"}
    assert run("pull", "llama", env=env).exit_code == 0


def test_to_needs_a_directory_that_is_visible(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.done(tmp_path / "nowhere")])
    result = run("pull", "llama", "--to", tmp_path / "out", "--agent", agent.address)
    assert isinstance(result.exception, NotFound)
    assert "P2PCACHE_MODELS_DIR" in str(result.exception)


def test_a_stale_tag_is_told(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    told = fakes.resolved() | {"stale": True, "trouble": "storage is away\x07"}
    agent.stream("POST /v1/pull", [told, fakes.done(tmp_path)])
    said = run("pull", "llama", "--agent", agent.address).stderr
    assert "llama:latest is taken as this cache last knew it: storage is away?\n" in said


def test_an_empty_to_is_refused(agent: FakeAgent, run: Run) -> None:
    """`--to "$UNSET"` must not end as a pull that put nothing anywhere."""
    assert run("pull", "llama", "--to", "", "--agent", agent.address).exit_code == 2
    assert agent.seen == []


@pytest.mark.parametrize(("moved", "stays"), [(0, False), (10, True)])
def test_only_a_pull_that_fetched_something_lingers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int, stays: bool
) -> None:
    lingered: list[str] = []
    done = fakes.done(tmp_path) | {"bytes_origin": moved, "bytes_peers": 0}

    @contextmanager
    def alone(*_: object, **__: object) -> Iterator[tuple[object, object]]:
        yield (event for event in [done]), lingered.append

    monkeypatch.setattr("p2pcache.cli.standalone.embedded.pull_alone", alone)
    assert run("pull", "llama").exit_code == 0
    assert bool(lingered) == stays


# -- part of a model: --include and --exclude for files, --tensors for chunks -------------------

REF = "team/m:v1"


@pytest.fixture
def origin(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    specs = [Spec(f"layers.{i}.w", "BF16", (512, 512)) for i in range(8)]
    write(tmp_path / "model/model.safetensors", specs)
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/weights.pth").write_bytes(random.Random(1).randbytes(700_000))
    push(tmp_path / "origin", tmp_path / "model", REF)
    return (tmp_path / "origin").as_uri()


@pytest.fixture
def address(tmp_path: Path, origin: str) -> Iterator[str]:
    settings = AgentSettings(
        listen="127.0.0.1:0", cache_dir=str(tmp_path / "cache"), socket=str(tmp_path / "a.sock"),
        origin=origin, min_free_bytes=0, shutdown_s=1.0,
    )  # fmt: skip
    with run_embedded(settings) as socket:
        yield f"unix://{socket}"


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder.strip()).iterdir()}


def test_files_by_pattern(address: str, run: Run, tmp_path: Path) -> None:
    done = run("pull", REF, "--agent", address, "--include", "*.json", "--include", "*.safe*")
    assert done.exit_code == 0, done.output
    assert names(done.stdout) == {"config.json", "model.safetensors"}
    assert "+" in Path(done.stdout.strip()).name
    copied = run("pull", REF, "--agent", address, "--exclude", "*.pth", "--to", tmp_path / "to")
    assert names(copied.stdout) == {"config.json", "model.safetensors"}
    assert Path(copied.stdout.strip()) == tmp_path / "to"
    none = run("pull", REF, "--agent", address, "--include", "*.gguf")
    assert isinstance(none.exception, NotFound)


def test_files_by_pattern_without_a_daemon(origin: str, run: Run, tmp_path: Path) -> None:
    flags = ["--origin", origin, "--cache-dir", str(tmp_path / "own"), "--quiet"]
    part = run("pull", REF, *flags, "--include", "*.json")
    assert names(part.stdout) == {"config.json"}
    whole = run("pull", REF, *flags)
    assert names(whole.stdout) == {"config.json", "model.safetensors", "weights.pth"}
    again = run("pull", REF, *flags, "--include", "*.json")
    assert names(again.stdout) == {"config.json"}


def test_tensors_by_pattern(address: str, run: Run) -> None:
    done = run("pull", REF, "--agent", address, "--tensors", "layers.[23].w")
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert "2 of 8 tensors" in done.stderr
    assert "for a directory pull the whole model" in done.stderr
    # The last chunk is here before the agent has counted the read that brought it.
    wait_until(lambda: AgentClient(address).status()["bytes"]["origin"] >= 2 * 512 * 1024, 30)
    fetched = AgentClient(address).status()["bytes"]["origin"]
    assert fetched < 4 * 512 * 1024
    told = run("pull", REF, "--agent", address, "--tensors", "layers.2.w", "--json")
    last = json.loads(told.stdout.splitlines()[-1])
    assert (last["event"], last["tensors"], last["bytes"]) == ("done", 1, 512 * 1024)
    assert "path" not in last
    assert AgentClient(address).status()["bytes"]["origin"] == fetched
    none = run("pull", REF, "--agent", address, "--tensors", "none.*")
    assert isinstance(none.exception, NotFound)


@pytest.mark.parametrize("more", [["--to", "x"], ["--include", "*"], ["--force-generation"]])
def test_tensors_go_with_nothing_else(address: str, run: Run, more: list[str]) -> None:
    assert run("pull", REF, "--agent", address, "--tensors", "x", *more).exit_code == 2


def test_tensors_need_an_agent(run: Run) -> None:
    assert isinstance(run("pull", REF, "--tensors", "x").exception, Unreachable)

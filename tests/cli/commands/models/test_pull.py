import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2pcache.errors import IntegrityError, NotFound, P2PCacheError, UsageError
from tests.cli import fake_agent as fakes
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent


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
        "ref": f"llama:latest@blake3:{HEX}",
        "force_generation": True,
    }


def test_no_agent_and_nowhere_to_pull_from(run: Run) -> None:
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


def test_verify_tells_good_from_bad(agent: FakeAgent, run: Run) -> None:
    end = {
        "event": "done",
        "ref": "llama",
        "digest": HEX,
        "bytes": 1000,
        "chunks": 4,
        "chunks_bad": 0,
        "seconds": 1.0,
    }
    agent.stream(
        "POST /v1/verify", [{"event": "progress", "bytes_done": 1, "bytes_total": 1000}, end]
    )
    good = run("verify", "llama", "--agent", agent.address)
    assert (good.exit_code, good.stdout) == (0, "")
    assert "all good" in good.stderr
    agent.stream("POST /v1/verify", [end | {"chunks_bad": 2}])
    bad = run("verify", "llama", "--agent", agent.address)
    assert isinstance(bad.exception, IntegrityError)
    assert "of 4 chunks 2 bad (dropped)" in str(bad.exception)


def test_a_stale_tag_is_told(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.resolved() | {"stale": True}, fakes.done(tmp_path)])
    assert "what this cache last knew" in run("pull", "llama", "--agent", agent.address).stderr


def test_an_empty_to_is_refused(agent: FakeAgent, run: Run) -> None:
    """`--to "$UNSET"` must not end as a pull that put nothing anywhere."""
    assert run("pull", "llama", "--to", "", "--agent", agent.address).exit_code == 2
    assert agent.seen == []


@pytest.mark.parametrize(("moved", "stays"), [(0, False), (10, True)])
def test_only_who_took_something_lingers(
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

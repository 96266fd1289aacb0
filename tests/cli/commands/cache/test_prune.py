import json

import pytest

from p2pcache.errors import UsageError
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_prune_says_what_it_removed(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    dry = run("prune", "--dry-run", "--agent", agent.address)
    assert dry.stdout == "would remove a:b\n1.00 kB would be freed\n"
    real = run("prune", "--all", "--yes", "--agent", agent.address)
    assert real.stdout == "removed a:b\n1.00 kB freed\n"
    assert [json.loads(b) for b in agent.bodies] == [
        {"dry_run": True, "all": False},
        {"dry_run": False, "all": True},
    ]


@pytest.mark.parametrize(("answer", "calls"), [("y\n", 2), ("n\n", 1)])
def test_prune_all_asks_on_a_terminal(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, calls: int
) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.cache.prune.on_terminal", lambda: True)
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    run("prune", "--all", "--agent", agent.address, input=answer)
    assert len(agent.bodies) == calls


def test_prune_all_asks_nobody_without_yes(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    for flags in ((), ("--json",)):
        done = run("prune", "--all", *flags, "--agent", agent.address)
        assert isinstance(done.exception, UsageError)
        assert "--yes" in str(done.exception)
    assert agent.bodies == []


def test_prune_says_what_it_kept_and_cannot_see(agent: FakeAgent, run: Run) -> None:
    told = {
        "removed": [],
        "bytes_freed": 0,
        "kept": ["a:b: vllm (pid 7)"],
        "unsure": "3 are hidden",
    }
    agent.document("POST /v1/prune", told)
    done = run("prune", "--agent", agent.address)
    assert done.stdout == "kept a:b: vllm (pid 7)\n0 B freed\n"
    assert "3 are hidden" in done.stderr

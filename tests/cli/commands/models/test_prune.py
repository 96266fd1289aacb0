import json

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_prune_says_what_it_removed(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    dry = run("prune", "--dry-run", "--agent", agent.address)
    assert dry.stdout == "would remove a:b\n1.00 kB would be freed\n"
    real = run("prune", "--all", "--agent", agent.address)  # no terminal: nothing is asked
    assert real.stdout == "removed a:b\n1.00 kB freed\n"
    assert [json.loads(b) for b in agent.bodies] == [
        {"dry_run": True, "all": False},
        {"dry_run": False, "all": True},
    ]


@pytest.mark.parametrize(("answer", "calls"), [("y\n", 2), ("n\n", 1)])
def test_prune_all_asks_on_a_terminal(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, calls: int
) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.models.prune._on_terminal", lambda: True)
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    run("prune", "--all", "--agent", agent.address, input=answer)
    assert len(agent.bodies) == calls

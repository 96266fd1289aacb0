import json
from typing import Any

import pytest

from p2pcache.errors import UsageError
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent


def answer(*, dry_run: bool = False, kept: bool = False, unsure: str = "") -> dict[str, Any]:
    row = {"ref": "team/a:v1", "digest": HEX, "bytes": 1000, "value": 3.0, "why": "used 3d0h ago"}
    return {
        "evicted": [row], "kept": [{"ref": "team/b:v1", "digest": HEX, "why": "pinned"}] if kept else [],
        "unsure": unsure, "bytes_freed": 1000, "dry_run": dry_run,
    }  # fmt: skip


def test_a_rehearsal_says_what_would_go_and_why(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/evict", answer(dry_run=True, kept=True, unsure="3 are hidden"))
    told = run("evict", "--dry-run", "--agent", agent.address)
    assert told.stdout == (
        "would evict team/a:v1 (1.00 kB): used 3d0h ago\nkept team/b:v1: pinned\n1.00 kB would be freed\n"
    )
    assert "3 are hidden" in told.stderr
    assert json.loads(agent.bodies[0]) == {"ref": "", "to_bytes": None, "dry_run": True}


def test_named_models_go_without_a_question(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/evict", answer())
    told = run("evict", "team/a:v1", "b", "--json", "--agent", agent.address)
    document = json.loads(told.stdout)
    assert len(document["evicted"]) == 2
    assert document["bytes_freed"] == 2000
    assert document["evicted"][0]["digest"] == f"blake3:{HEX}"
    assert [json.loads(body)["ref"] for body in agent.bodies] == ["team/a:v1", "b:latest"]


def test_a_refusal_is_its_exit_code(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/evict", {"code": 10, "message": "in use"}, status=409)
    assert run("evict", "team/a:v1", "--agent", agent.address).exception.exit_code == 10  # type: ignore[union-attr]


@pytest.mark.parametrize(("said", "calls"), [("y\n", 2), ("n\n", 1)])
def test_without_a_name_it_is_asked_on_a_terminal(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch, said: str, calls: int
) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.cache.evict.on_terminal", lambda: True)
    agent.document("POST /v1/evict", answer())
    run("evict", "--agent", agent.address, input=said)
    assert [json.loads(body)["dry_run"] for body in agent.bodies] == [True, False][:calls]


def test_prune_to_a_size_evicts_after_it_has_pruned(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/prune", {"removed": [], "bytes_freed": 500, "kept": [], "unsure": ""})
    agent.document("POST /v1/evict", answer())
    told = run("prune", "--to", "500GB", "--agent", agent.address)
    assert told.stdout == "evicted team/a:v1 (1.00 kB): used 3d0h ago\n1.50 kB freed\n"
    assert json.loads(agent.bodies[1])["to_bytes"] == 500_000_000_000
    document = json.loads(run("prune", "--to", "1GB", "--json", "--agent", agent.address).stdout)
    assert document["evicted"]["bytes_freed"] == 1000
    for wrong in (("--to", "much"), ("--all", "--to", "1GB")):
        assert isinstance(run("prune", *wrong, "--agent", agent.address).exception, UsageError)

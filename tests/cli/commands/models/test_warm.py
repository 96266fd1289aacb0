"""`warm` against a scripted agent: what it asks, prints, and ends with."""

import json
from pathlib import Path
from typing import Any

import pytest

from p2pcache.cli.commands.models import warm
from p2pcache.errors import NoSpace, NotFound, P2PCacheError, Unreachable
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent, Handler, done, progress, resolved

BEGAN = {"ref": "llama:latest", "digest": HEX, "bytes": 1000, "state": "started"}


def row(number: int, state: str, **more: Any) -> dict[str, Any]:
    return {
        "node": f"{number:016x}", "name": f"n{number}", "address": f"10.0.0.{number}:7401",
        "rack": "r1", "site": "", "state": state, **more,
    }  # fmt: skip


def spread(have: int, *rows: dict[str, Any], replicas: int = 3, older: int = 0) -> dict[str, Any]:
    return {
        "ref": "llama:latest", "digest": HEX, "bytes": 1000, "replicas": replicas,
        "have": have, "older": older, "nodes": list(rows),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("started", "warming llama:latest: 1.00 kB, behind all pulls; `p2pcache ps` shows it"),
        ("getting", "llama:latest: 1.00 kB, is on its way to this node already"),
        ("had", "llama:latest: already here, 1.00 kB"),
    ],
)  # fmt: skip
def test_it_returns_at_once(agent: FakeAgent, run: Run, state: str, text: str) -> None:
    agent.document("POST /v1/warm", BEGAN | {"state": state})
    result = run("warm", "llama", "--agent", agent.address)
    assert (result.exit_code, result.stdout) == (0, f"{text}\n")
    assert json.loads(agent.bodies[-1]) == {"ref": "llama:latest", "replicas": 0}
    assert run("warm", "llama", "-q", "--agent", agent.address).stdout == ""
    machine = run("warm", "llama", "--json", "--agent", agent.address)
    assert json.loads(machine.stdout)["state"] == state


def test_a_name_is_shown_with_its_capitals(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.document("POST /v1/warm", BEGAN)
    assert run("warm", "Org/Llama", "--agent", agent.address).stdout.startswith(
        "warming Org/Llama:latest: 1.00 kB"
    )
    agent.stream("POST /v1/pull", [resolved(), done(tmp_path)])
    told = run("warm", "Org/Llama:v1", "--wait", "--agent", agent.address)
    assert "Org/Llama:v1: here now" in told.stderr
    agent.document("POST /v1/warm", spread(1, row(1, "had")))
    refused = run("warm", "Org/Llama", "--replicas", 3, "--agent", agent.address)
    assert "1 of 3 nodes have Org/Llama:latest" in str(refused.exception)


def test_waiting_follows_it_in_the_background(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.document("POST /v1/warm", BEGAN)
    agent.stream("POST /v1/pull", [resolved(), progress(500), done(tmp_path)])
    result = run("warm", "llama", "--wait", "--agent", agent.address)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "llama:latest: here now, 1.00 kB" in result.stderr
    assert json.loads(agent.bodies[-1])["background"] is True
    machine = run("warm", "llama", "--wait", "--json", "--agent", agent.address)
    assert [json.loads(line)["event"] for line in machine.stdout.splitlines()] == [
        "resolved", "progress", "done",
    ]  # fmt: skip


def test_no_space_here(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/warm", {"code": 5, "message": "not enough space"}, status=507)
    result = run("warm", "llama", "--agent", agent.address)
    assert isinstance(result.exception, NoSpace)


def test_replicas_print_a_line_for_each_node(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/warm", spread(3, row(1, "had"), row(2, "getting"), row(3, "started")))
    result = run("warm", "llama", "--replicas", 3, "--agent", agent.address)
    assert result.exit_code == 0
    assert json.loads(agent.bodies[-1])["replicas"] == 3
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["NODE", "NAME", "RACK", "SITE", "STATE"]
    assert [line[-1] for line in lines[1:]] == ["had", "getting", "started"]
    machine = run("warm", "llama", "--replicas", 3, "--json", "--agent", agent.address)
    assert json.loads(machine.stdout)["have"] == 3


@pytest.mark.parametrize(
    ("told", "cause", "text"),
    [
        (spread(2, row(1, "had"), row(2, "started")), NotFound, "the cluster has no more; add nodes"),
        (spread(1, row(1, "had"), older=4), NotFound, "and 4 of an older release can't be told"),
        (
            spread(1, row(1, "had"), row(2, "refused", code=5, message="no room \x1b[2J")),
            NoSpace, "1 of 3 nodes have llama:latest or get it; n2: no room ?[2J",
        ),
        (
            spread(1, row(2, "refused", code=8, message="mute"), row(3, "refused", code=5, message="x")),
            Unreachable, "n2 (and 1 more): mute",
        ),
    ],
)  # fmt: skip
def test_too_few_nodes_end_with_the_cause(
    agent: FakeAgent, run: Run, told: dict[str, Any], cause: type[P2PCacheError], text: str
) -> None:
    agent.document("POST /v1/warm", told)
    result = run("warm", "llama", "--replicas", 3, "--agent", agent.address)
    assert isinstance(result.exception, cause)
    assert text in str(result.exception)
    assert "n1" in result.stdout or told["nodes"][0]["name"] in result.stdout


def locating(agent: FakeAgent, *looks: tuple[int, list[float]]) -> None:
    """(how many are getting it, what share each node has), look by look."""
    left = list(looks)

    def reply(handler: Handler) -> None:
        getting, shares = left.pop(0)
        nodes = [{"node": "x", "share": share, "complete": share == 1.0} for share in shares]
        handler.answer(200, {"ref": "x", "digest": HEX, "nodes": nodes, "getting": getting})

    agent.replies["GET /v1/locate"] = reply


def test_waiting_for_all_of_them(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "LOCATE_EVERY_S", 0.01)
    agent.document("POST /v1/warm", spread(3, row(1, "had"), row(2, "started"), row(3, "started")))
    locating(agent, (2, [1.0]), (2, [1.0, 0.5, 0.2]), (0, [1.0, 1.0, 1.0]))
    result = run("warm", "llama", "--replicas", 3, "--wait", "--agent", agent.address)
    assert result.exit_code == 0
    assert "complete on 3 nodes" in result.stderr
    assert f"blake3%3A{HEX}" in agent.seen[-1][1], "what the tag meant then"


def test_waiting_ends_when_nobody_goes_on(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "LOCATE_EVERY_S", 0.01)
    agent.document("POST /v1/warm", spread(3, row(1, "had"), row(2, "started"), row(3, "started")))
    locating(agent, (2, [1.0]), (0, [1.0, 0.4]))
    result = run("warm", "llama", "--replicas", 3, "--wait", "--json", "--agent", agent.address)
    assert json.loads(result.stdout)["complete"] == 1
    assert isinstance(result.exception, Unreachable)
    assert "only 1 of 3 nodes ended up with it" in str(result.exception)


def test_without_an_agent(run: Run) -> None:
    assert isinstance(run("warm", "llama").exception, Unreachable)

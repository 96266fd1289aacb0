"""`keep` and `nodes drain`: what is asked of the agent, and what people see."""

import json
from typing import Any

import pytest

from p2pcache.errors import NotFound, UsageError
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent

GB = 10**9
ROW: dict[str, Any] = {
    "ref": "team/a:v1", "namespace": "team", "digest": HEX, "bytes": GB, "wish": "copies 2",
    "copies": 2, "whole": False, "everywhere": False, "nodes": "", "made": 1.0, "state": "arriving",
    "have": 1, "target": 2, "missing_bytes": GB // 2, "missing_places": 3, "holders": 8, "trouble": "",
    "refused": [{"node": "aa", "name": "n1", "why": "no_space", "detail": "the disk\x1b[31m is full"}],
    "repairs": [{"began": 90.0, "ended": 0.0, "bytes": GB}, {"began": 10.0, "ended": 40.0, "bytes": 2 * GB}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.cluster.keep.time.time", lambda: 100.0)


@pytest.mark.parametrize(
    ("args", "wish"),
    [
        (["--copies", "2"], {"copies": 2}),
        (["--whole", "3"], {"copies": 3, "whole": True}),
        (["--all"], {"everywhere": True}),
        (["--nodes", "rack=r1,role=seed"], {"everywhere": True, "nodes": "rack=r1,role=seed"}),
        (["--copies", "1", "--nodes", "site=x"], {"copies": 1, "nodes": "site=x"}),
    ],
)
def test_wishes(agent: FakeAgent, run: Run, args: list[str], wish: dict[str, Any]) -> None:
    agent.document("POST /v1/keeps", ROW)
    told = run("keep", "team/a:v1", *args, "--agent", agent.address)
    assert told.exit_code == 0
    body = {"ref": "team/a:v1", "copies": 0, "whole": False, "everywhere": False, "nodes": ""}
    assert json.loads(agent.bodies[-1]) == body | wish
    assert told.stdout.splitlines() == [
        "team/a:v1: copies 2: arriving",
        "copies   1/2 on 8 nodes",
        "missing  500 MB of copies that are to be made",
        "refused  n1: no_space: the disk?[31m is full",
        "repair   goes on since 10s, 1.00 GB moved until now",
        "repaired 1m00s ago, 2.00 GB moved in 30s",
    ]


def test_a_name_is_shown_as_it_was_pushed(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/keeps", {"keeps": [ROW | {"spelled": "Team/A"}], "drains": []})
    assert run("keep", "Team/A:v1", "--agent", agent.address).stdout.startswith("Team/A:v1: ")
    assert "Team/A  v1 " in run("keep", "--list", "--agent", agent.address).stdout


@pytest.mark.parametrize(
    "args",
    [["a", "--copies", "1", "--all"], ["a", "--off", "--whole", "1"], ["--copies", "1"], ["a", "--list"],
     ["a", "--all", "--nodes", "rack=x"], ["a", "--copies", "0"], ["a", "--copies", "1", "--nodes", ""]],
)  # fmt: skip
def test_contradictions(agent: FakeAgent, run: Run, args: list[str]) -> None:
    result = run("keep", *args, "--agent", agent.address)
    assert isinstance(result.exception, UsageError) or result.exit_code == 2
    assert not agent.seen


def test_what_is_kept_is_shown_and_listed(agent: FakeAgent, run: Run) -> None:
    drain = {"node": "aa", "name": "n1", "made": 1.0, "kept_bytes": GB, "here": True}
    agent.document("GET /v1/keeps", {"keeps": [ROW], "drains": [drain]})
    lines = run("keep", "--list", "--agent", agent.address).stdout.splitlines()
    heads = ["NAME", "TAG", "SIZE", "COPIES", "MISSING", "WISH", "NODES", "STATE", "REPAIRED"]
    assert lines[0].split() == heads
    row = "team/a v1 1.00 GB 1/2 500 MB copies 2 8 arriving 1m00s ago, 2.00 GB"
    assert lines[1].split() == row.split()
    assert lines[2] == "node n1 is draining: 1.00 GB left"
    gone = drain | {"kept_bytes": 0, "here": False}
    agent.document("GET /v1/keeps", {"keeps": [], "drains": [gone]})
    told = run("keep", "--list", "--agent", agent.address).stdout
    assert told.splitlines()[-1] == "node n1 is drained, and gone"
    agent.document("GET /v1/keeps", {"keeps": [ROW], "drains": [drain]})
    one = json.loads(run("keep", "team/a:v1", "--json", "--agent", agent.address).stdout)
    assert (one["bytes_missing"], one["made_at"]) == (GB // 2, "1970-01-01T00:00:01.000Z")
    missing = run("keep", "team/b:v1", "--agent", agent.address)
    assert isinstance(missing.exception, NotFound)


def test_bytes_that_nobody_has_told_are_left_out(agent: FakeAgent, run: Run) -> None:
    repairs = [
        {"began": 90.0, "ended": 0.0, "bytes": 0},
        {"began": 10.0, "ended": 40.0, "bytes": 0},
    ]
    agent.document("GET /v1/keeps", {"keeps": [ROW | {"repairs": repairs}], "drains": []})
    lines = run("keep", "team/a:v1", "--agent", agent.address).stdout.splitlines()
    assert lines[-2:] == ["repair   goes on since 10s", "repaired 1m00s ago in 30s"]
    assert "1m00s ago\n" in run("keep", "--list", "--agent", agent.address).stdout


def test_off(agent: FakeAgent, run: Run) -> None:
    agent.document("DELETE /v1/keeps", {"ref": "team/a:v1", "off": True})
    assert (
        "isn't kept any more" in run("keep", "team/a:v1", "--off", "--agent", agent.address).stdout
    )
    assert agent.seen[-1][1] == "/v1/keeps?ref=team%2Fa%3Av1"
    told = run("keep", "Team/A:v1", "--off", "--agent", agent.address).stdout
    assert told.startswith("Team/A:v1 isn't kept any more")


def test_drain_and_undo(agent: FakeAgent, run: Run) -> None:
    told = {"node": "aa", "name": "n1", "state": "draining", "kept_bytes": GB}
    agent.document("POST /v1/drain", told)
    assert run("nodes", "drain", "n1", "--agent", agent.address).stdout == "n1: draining, 1.00 GB left\n"  # fmt: skip
    assert json.loads(agent.bodies[-1]) == {"node": "n1", "undo": False}
    undone = run("nodes", "drain", "n1", "--undo", "--json", "--agent", agent.address)
    assert json.loads(undone.stdout)["bytes_kept"] == GB
    assert json.loads(agent.bodies[-1]) == {"node": "n1", "undo": True}
    agent.document("GET /v1/nodes", {"nodes": [{"node": "00ab", "drain": "drained"}]})
    assert run("nodes", "--agent", agent.address).stdout.splitlines()[1].split()[2] == "drained"


def test_what_a_tracker_waits_for_that_has_just_taken_over(agent: FakeAgent, run: Run) -> None:
    waiting = ROW | {"state": "waiting", "tracker_s": 3.1, "waits_s": 597.0}
    agent.document("GET /v1/keeps", {"keeps": [waiting], "drains": []})
    for args in (["keep", "team/a:v1"], ["keep", "--list"]):
        told = run(*args, "--agent", agent.address).stderr
        assert "the tracker is active since 3.1s and still hears from nodes" in told
        assert "for 9m57s more it makes no copies" in told


def test_a_drain_of_a_node_that_is_gone_says_what_becomes_of_its_parts(
    agent: FakeAgent, run: Run
) -> None:
    told = {"node": "aa", "name": "n1", "state": "draining", "kept_bytes": GB, "here": False}
    agent.document("POST /v1/drain", told)
    done = run("nodes", "drain", "n1", "--agent", agent.address)
    assert done.stdout == "n1: draining, 1.00 GB left\n"
    assert "it is gone: its parts are made again on others" in done.stderr
    undone = run("nodes", "drain", "n1", "--undo", "--agent", agent.address)
    assert undone.stdout == "n1 keeps parts again if it comes back\n"
    known = json.loads(run("nodes", "drain", "n1", "--json", "--agent", agent.address).stdout)
    assert known["here"] is False


@pytest.mark.parametrize(("more", "line"), [
    ({"state": "no room"}, "         3 parts of it for which no further node has room"),
    ({"state": "no nodes", "nodes": "gpu=h100"}, "         no node is gpu=h100 now"),
])  # fmt: skip
def test_what_is_in_the_way(agent: FakeAgent, run: Run, more: dict[str, Any], line: str) -> None:
    agent.document("POST /v1/keeps", ROW | more)
    told = run("keep", "team/a:v1", "--copies", "2", "--agent", agent.address)
    assert line in told.stdout.splitlines()

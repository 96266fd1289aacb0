import json
from typing import Any

from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent

GB = 1_000_000_000


def room(**more: Any) -> dict[str, Any]:
    return {
        "capacity_bytes": 100 * GB, "limit_bytes": 80 * GB, "quota_bytes": 80 * GB, "used_bytes": 60 * GB,
        "free_bytes": 40 * GB, "held_bytes": 20 * GB, "evictable_bytes": 35 * GB, "kept_bytes": 5 * GB,
        "models": 3, **more,
    }  # fmt: skip


def test_one_node(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/room", room())
    heads, row = run("df", "--agent", agent.address).stdout.splitlines()
    assert heads.split() == [
        "CAPACITY",
        "LIMIT",
        "USED",
        "USE",
        "HELD",
        "KEPT",
        "EVICTABLE",
        "MODELS",
    ]
    assert " ".join(row.split()) == "100 GB 80.0 GB 60.0 GB 75% 20.0 GB 5.00 GB 35.0 GB 3"
    document = json.loads(run("df", "--json", "--agent", agent.address).stdout)
    assert (document["bytes_used"], document["bytes_quota"]) == (60 * GB, 80 * GB)


def test_the_pool_is_summed(agent: FakeAgent, run: Run) -> None:
    rows = [room(node="b", name="b"), room(node="a", name="a", used_bytes=20 * GB)]
    agent.document("GET /v1/cluster/room", {"room": rows, "silent": 1, "older": 0})
    told = run("df", "--cluster", "--agent", agent.address)
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["NODE", "a", "b", "(pool)"]
    assert "50%" in told.stdout.splitlines()[-1]
    assert "1 nodes didn't answer" in told.stderr
    document = json.loads(run("df", "--cluster", "--json", "--agent", agent.address).stdout)
    assert document["sum"]["bytes_used"] == 80 * GB


def test_models_of_all_nodes_with_their_copies(agent: FakeAgent, run: Run) -> None:
    swarm = {
        "label": "team/a:v1", "digest": HEX, "bytes": GB, "members": 4, "share": 0.5, "complete": 1, "wanting": 0,
    }  # fmt: skip
    parts = swarm | {"label": "b:v2", "complete": 0}
    agent.document("GET /v1/cluster/models", {"swarms": [swarm, parts, swarm | {"label": ""}]})
    lines = run("ls", "--cluster", "--agent", agent.address).stdout.splitlines()
    assert lines[0].split() == ["NAME", "TAG", "DIGEST", "SIZE", "COPIES", "NODES", "PHASE"]
    assert [line.split()[0] for line in lines[1:]] == ["-", "b", "team/a"]
    assert lines[2].split()[-4:] == ["2", "4", "in", "parts"]
    assert lines[3].split()[-3:] == ["2", "4", "whole"]
    document = json.loads(
        run("ls", "--cluster", "Team/*", "--json", "--agent", agent.address).stdout
    )
    assert [row["copies"] for row in document["models"]] == [2.0]
    assert [row["keep"] for row in document["models"]] == [None], (
        "this agent is of the release before"
    )
    agent.document(
        "GET /v1/keeps", {"keeps": [{"digest": HEX, "have": 1, "target": 3}], "drains": []}
    )
    lines = run("ls", "--cluster", "--agent", agent.address).stdout.splitlines()
    assert lines[3].split()[-3:] == ["1/3", "4", "whole"]

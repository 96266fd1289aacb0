from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_nodes_is_a_table(agent: FakeAgent, run: Run) -> None:
    node = {
        "node": "00ab",
        "address": "h:1",
        "rack": "",
        "version": "0.1",
        "models": 2,
        "cached_bytes": 1000,
        "last_seen_s": 1.2,
    }
    agent.document("GET /v1/nodes", {"nodes": [node]})
    assert run("nodes", "--agent", agent.address).stdout.splitlines()[1].split()[:6] == [
        "00ab",
        "-",
        "up",
        "h:1",
        "-",
        "-",
    ]


def test_a_node_that_has_just_come_tells_no_sizes_yet(agent: FakeAgent, run: Run) -> None:
    node = {"node": "00ab", "cached_bytes": 0, "free_bytes": 0, "models": 2, "load": 0}
    full = node | {"cached_bytes": 1000}
    agent.document("GET /v1/nodes", {"nodes": [node, full]})
    lines = run("nodes", "--agent", agent.address).stdout.splitlines()
    assert lines[1].split()[7:12] == ["2", "-", "-", "-", "0"]
    assert " ".join(lines[2].split()[7:15]) == "2 1.00 kB 0 B 0 B 0"


def test_a_node_that_is_gone_leaves_a_trace(agent: FakeAgent, run: Run) -> None:
    up = {"node": "00ab", "connected": True, "last_seen_s": 1.0}
    nodes = [up, up | {"unreached": True}, up | {"connected": False}]
    gone = [
        {"node": "00cd", "name": "pod-7", "lost": True, "gone_s": 180.0},
        {"node": "00ef", "lost": False, "gone_s": 1},
    ]
    agent.document("GET /v1/nodes", {"nodes": nodes, "gone": gone})
    lines = run("nodes", "--agent", agent.address).stdout.splitlines()
    assert [line.split()[2] for line in lines] == [
        "STATUS",
        "up",
        "unreached",
        "reconnecting",
        "lost",
        "left",
    ]
    assert lines[4].split()[1] == "pod-7"
    assert lines[4].endswith("3m00s ago")
    told = run("nodes", "--json", "--agent", agent.address).stdout
    assert '"gone"' in told

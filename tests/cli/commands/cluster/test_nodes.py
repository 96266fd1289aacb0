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
    assert run("nodes", "--agent", agent.address).stdout.splitlines()[1].split()[:5] == [
        "00ab",
        "-",
        "h:1",
        "-",
        "-",
    ]


def test_a_node_that_has_just_come_tells_no_sizes_yet(agent: FakeAgent, run: Run) -> None:
    node = {"node": "00ab", "cached_bytes": 0, "free_bytes": 0, "models": 2, "load": 0}
    full = node | {"cached_bytes": 1000}
    agent.document("GET /v1/nodes", {"nodes": [node, full]})
    lines = run("nodes", "--agent", agent.address).stdout.splitlines()
    assert lines[1].split()[6:10] == ["2", "-", "-", "0"]
    assert " ".join(lines[2].split()[6:12]) == "2 1.00 kB 0 B 0"

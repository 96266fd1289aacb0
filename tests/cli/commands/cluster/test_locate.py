import json

from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_locate_is_a_table(agent: FakeAgent, run: Run) -> None:
    nodes = [{"node": "00ab", "name": "gpu-7", "address": "h:1", "rack": "r1", "share": 1.0},
             {"node": "00ac", "address": "h:2", "share": 0.5}]  # fmt: skip
    agent.document("GET /v1/locate", {"ref": "m:v1", "digest": "ab" * 32, "nodes": nodes})
    lines = run("locate", "m:v1", "--agent", agent.address).stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["00ab", "gpu-7", "h:1", "r1", "-", "100%"],
        ["00ac", "-", "h:2", "-", "-", "50%"],
    ]
    document = json.loads(run("locate", "m:v1", "--json", "--agent", agent.address).stdout)
    assert document["nodes"] == nodes

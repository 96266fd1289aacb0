import json
import time

from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_locate_is_a_table(agent: FakeAgent, run: Run) -> None:
    nodes = [{"node": "00ab", "name": "gpu-7", "address": "h:1", "rack": "r1", "share": 1.0,
              "complete": True, "kept": "whole", "pinned": True, "held": False, "last_used": time.time()},
             {"node": "00ac", "address": "h:2", "share": 0.5}]  # fmt: skip
    agent.document("GET /v1/locate", {"ref": "m:v1", "digest": "ab" * 32, "nodes": nodes})
    lines = run("locate", "m:v1", "--agent", agent.address).stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["00ab", "gpu-7", "h:1", "r1", "-", "full", "kept,", "pinned", "0.0s", "ago"],
        ["00ac", "-", "h:2", "-", "-", "50.0%", "-", "-"],
    ]
    document = json.loads(run("locate", "m:v1", "--json", "--agent", agent.address).stdout)
    assert document["nodes"][1] == nodes[1]
    assert document["nodes"][0]["kept"] == "whole"

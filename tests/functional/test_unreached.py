"""A node that can dial and can't be dialled: the storm goes on without it, and people are told."""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from loadtest.kit.cluster import free_ports
from loadtest.kit.models import make_model, total_bytes
from tests.functional.node import MakeCluster, Pull, bytes_done, push


@pytest.mark.timeout(240)
def test_a_node_that_nobody_reaches(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(agents=3, agent_flags=["--origin-bytes-per-s", "4mib"])
    hidden = cluster.add_agent(
        "--advertise", f"127.0.0.1:{free_ports(1)[0]}"
    )  # as behind a firewall
    hidden.start()
    node = hidden.client.status()["node"]
    line, deadline = "", time.monotonic() + 30
    while not line:  # nobody has pulled anything yet
        assert time.monotonic() < deadline
        lines = cluster.tracker.log_path.read_text().splitlines()
        line = next((one for one in lines if "nobody reaches" in one), "")
        time.sleep(0.05)
    assert node in line

    ref, model = "m:v1", make_model(tmp_path / "model", 24 << 20, seed=1)
    push(cluster, model, ref)
    others = cluster.agents[:3]
    pulls = [Pull(agent, ref) for agent in others]
    while not all(bytes_done(agent) for agent in others):
        assert all(pull.is_alive() for pull in pulls), "too quick for this test"
        time.sleep(0.01)
    last = Pull(hidden, ref)  # whoever comes first has to read, whether others get at it or not
    done = [int(pull.wait(limit_s=90)["bytes_origin"]) for pull in (*pulls, last)]
    assert done[3] == 0, "what it reads nobody can get from it"
    assert sum(done) <= total_bytes(model) * 1.01

    # It came first, and alone: the others read again all that it has, once they have waited for it in vain.
    ref, model = "m:v2", make_model(tmp_path / "second", 24 << 20, seed=2)
    push(cluster, model, ref)
    assert int(Pull(hidden, ref).wait(limit_s=90)["bytes_origin"]) == total_bytes(model)
    started = time.monotonic()
    pulls = [Pull(agent, ref) for agent in others]
    done = [int(pull.wait(limit_s=90)["bytes_origin"]) for pull in pulls]
    assert sum(done) <= total_bytes(model) * 1.01
    assert time.monotonic() - started < 20, "it took eight seconds for each window of the model"

    listed = json.loads(cluster.run("nodes", "--json").stdout)["nodes"]
    assert [one["node"] for one in listed if one["unreached"]] == [node]
    told = cluster.run("nodes").stdout
    assert next(one for one in told.splitlines() if node in one).split()[2] == "unreached"
    with urllib.request.urlopen(f"{cluster.tracker_url}/metrics", timeout=5) as answer:
        assert b"p2pcache_tracker_unreached_members 1.0" in answer.read()


@pytest.mark.timeout(240)
def test_nodes_that_reach_nobody_read_storage_and_say_so(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """A firewall between all of them: no worse than without p2pcache, and no riddle for who is paged."""
    cluster = make_cluster(agents=1, agent_flags=["--origin-bytes-per-s", "3mib"])
    closed = free_ports(3)
    nodes = [cluster.add_agent("--advertise", f"127.0.0.1:{port}") for port in closed]
    for node in nodes:
        node.start()
    ref, model = "m:v1", make_model(tmp_path / "model", 48 << 20, seed=1)
    push(cluster, model, ref)
    started = time.monotonic()
    pulls = [Pull(node, ref) for node in nodes]
    warnings: list[str] = []
    while not warnings and all(pull.is_alive() for pull in pulls):
        warnings = nodes[0].client.status()["warnings"]
        time.sleep(0.1)
    assert [one for one in warnings if ref in one and "agents' port" in one]
    told = cluster.run("explain", ref, agent=1).stdout
    assert "tracker connected; no other node can be reached" in told
    done = [int(pull.wait(limit_s=90)["bytes_origin"]) for pull in pulls]
    assert done == [total_bytes(model)] * 3
    assert time.monotonic() - started < 60
    assert "agents' port" in nodes[0].log_path.read_text()
    assert nodes[0].client.status()["warnings"] == []

"""A node that can dial and can't be dialled: the storm goes on, and people are told."""

import json
import urllib.request
from pathlib import Path

import pytest

from loadtest.cluster import free_ports
from loadtest.models import total_bytes
from tests.functional.node import MakeCluster, Pull, push


@pytest.mark.timeout(150)
def test_a_node_that_nobody_reaches(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=3)
    push(cluster, model)
    hidden = cluster.add_agent(
        "--advertise", f"127.0.0.1:{free_ports(1)[0]}"
    )  # as behind a firewall
    hidden.start()
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents]
    done = [pull.wait(limit_s=90) for pull in pulls]

    had = int(done[3]["bytes_origin"])
    assert had, "it was never given anything to read: this tests nothing"
    # What it alone had read is read again, nothing else. (A starved machine takes more for slow.)
    assert sum(int(one["bytes_origin"]) for one in done) <= total_bytes(model) * 1.05 + had
    line = next(
        one for one in cluster.tracker.log_path.read_text().splitlines() if "nobody reaches" in one
    )
    node = hidden.client.status()["node"]
    assert node in line
    listed = json.loads(cluster.run("nodes", "--json").stdout)["nodes"]
    assert [one["node"] for one in listed if one["unreached"]] == [node]
    told = cluster.run("nodes").stdout
    assert next(one for one in told.splitlines() if node in one).endswith("nobody reaches it")
    with urllib.request.urlopen(f"{cluster.tracker_url}/metrics", timeout=5) as answer:
        assert b"p2pcache_tracker_unreached_members 1.0" in answer.read()

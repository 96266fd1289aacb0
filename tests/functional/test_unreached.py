"""A node that can dial and can't be dialled: the storm goes on, and people are told."""

import json
import urllib.request
from pathlib import Path

import pytest

from loadtest.cluster import free_ports
from loadtest.models import make_model, total_bytes
from tests.functional.node import MakeCluster, Pull, push


@pytest.mark.timeout(240)
def test_a_node_that_nobody_reaches(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(agents=3)
    line = ""
    hidden = cluster.add_agent(
        "--advertise", f"127.0.0.1:{free_ports(1)[0]}"
    )  # as behind a firewall
    for number in range(
        4
    ):  # two must have waited for the same run of it: not in every storm that is so short
        ref, model = f"m{number}:v1", make_model(tmp_path / str(number), 24 << 20, seed=number)
        push(cluster, model, ref)
        if not number:
            hidden.start()
        pulls = [Pull(agent, ref) for agent in cluster.agents]
        done = [int(pull.wait(limit_s=90)["bytes_origin"]) for pull in pulls]
        # What it alone had read is read again, nothing else. (A starved machine takes more for slow.)
        assert sum(done) <= total_bytes(model) * 1.05 + done[3]
        lines = cluster.tracker.log_path.read_text().splitlines()
        if line := next((one for one in lines if "nobody reaches" in one), ""):
            break
    node = hidden.client.status()["node"]
    assert node in line
    listed = json.loads(cluster.run("nodes", "--json").stdout)["nodes"]
    assert [one["node"] for one in listed if one["unreached"]] == [node]
    told = cluster.run("nodes").stdout
    assert next(one for one in told.splitlines() if node in one).endswith("nobody reaches it")
    with urllib.request.urlopen(f"{cluster.tracker_url}/metrics", timeout=5) as answer:
        assert b"p2pcache_tracker_unreached_members 1.0" in answer.read()

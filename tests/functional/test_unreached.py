"""A node that can dial and can't be dialled: the storm goes on without it, and people are told."""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from loadtest.cluster import free_ports
from loadtest.models import make_model, total_bytes
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
    assert next(one for one in told.splitlines() if node in one).endswith("nobody reaches it")
    with urllib.request.urlopen(f"{cluster.tracker_url}/metrics", timeout=5) as answer:
        assert b"p2pcache_tracker_unreached_members 1.0" in answer.read()

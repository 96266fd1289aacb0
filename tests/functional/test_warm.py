"""Warming a cluster of real processes by the public command."""

import json
from pathlib import Path

from loadtest.kit.models import check_tree, total_bytes
from tests.functional.node import MakeCluster, push


def test_k_nodes_get_it_and_pods_find_it_there(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=3)
    push(cluster, model)
    told = cluster.run("warm", "m:v1", "--replicas", "2", "--wait", "--json", agent=0)
    answer = json.loads(told.stdout)
    assert (answer["have"], answer["complete"]) == (2, 2)
    assert [row["state"] for row in answer["nodes"]] == ["started", "started"]
    chosen = {row["node"] for row in answer["nodes"]}
    located = json.loads(cluster.run("locate", "m:v1", "--json", agent=0).stdout)
    assert {row["node"] for row in located["nodes"] if row["complete"]} == chosen
    for agent in cluster.agents:
        if agent.client.status()["node"] in chosen:
            done = list(agent.client.pull("m:v1"))[-1]
            assert done["bytes_origin"] == done["bytes_peers"] == 0
            check_tree(agent.tree(str(done["path"])), model)
    again = cluster.run("warm", "m:v1", "--replicas", "2", agent=1)
    assert again.stdout.count("had") == 2
    short = cluster.run("warm", "m:v1", "--replicas", "4", "--wait", agent=1, code=3)
    assert "3 of 4 nodes have m:v1 or get it: the cluster has no more" in short.stderr
    assert all(a.client.models()[0]["bytes_done"] == total_bytes(model) for a in cluster.agents)


def test_one_node(make_cluster: MakeCluster, other_model: Path) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, other_model)
    assert "behind all pulls" in cluster.run("warm", "m:v1").stdout
    cluster.run("warm", "m:v1", "--wait")
    assert "already here" in cluster.run("warm", "m:v1").stdout
    assert "warm " in cluster.run("history").stdout
    cluster.run("warm", "absent:v1", code=3)

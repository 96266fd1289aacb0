"""What runs and what ended on all nodes, asked of any one."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from loadtest.kit.daemons import wait_until
from tests.functional.node import MakeCluster, Pull, bytes_done, push

SLOW = ("--origin-bytes-per-s", "3MiB")


def test_pulls_and_history_of_all_nodes(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=3, agent_flags=SLOW)
    push(cluster, model)
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents[:2]]
    wait_until(lambda: all(bytes_done(agent) for agent in cluster.agents[:2]), 60)
    told = json.loads(cluster.run("ps", "--cluster", "--json", agent=2).stdout)
    assert (told["schema"], told["silent"], told["older"]) == (1, 0, 0)
    assert {row["ref"] for row in told["pulls"]} == {"m:v1"}
    assert len({row["node"] for row in told["pulls"]}) == 2
    lines = cluster.run("ps", "--cluster", agent=2).stdout.splitlines()
    assert lines[0].split()[:2] == ["NODE", "REF"]
    assert len(lines) == 3
    assert cluster.run("ps", agent=2).stdout.splitlines()[1:] == []
    cluster.run("cancel", "m:v1", agent=0)
    pulls[0].join(40)
    assert pulls[0].error is not None
    assert pulls[0].error.exit_code == 130
    pulls[1].wait(60)
    rows = json.loads(cluster.run("history", "--cluster", "--json", agent=2).stdout)["history"]
    assert {row["code"] for row in rows} == {0, 130}
    assert len({row["node"] for row in rows}) == 2
    assert rows == sorted(rows, key=lambda row: str(row["ended_at"]), reverse=True)
    assert "cancelled" in cluster.run("history", "--cluster", "--since", "10m", agent=1).stdout


@contextlib.contextmanager
def process_stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_node_that_says_nothing_is_counted(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(agents=2)
    process = cluster.agents[1].process
    assert process is not None
    with process_stopped(process.pid):
        done = cluster.run("ps", "--cluster", "--json", agent=0)
        assert json.loads(done.stdout)["silent"] == 1
        assert "1 nodes didn't answer" in cluster.run("ps", "--cluster", agent=0).stderr

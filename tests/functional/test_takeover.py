"""Two trackers: the active one dies or hangs while pulls are under way, and the other one takes over."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import Agent, Cluster, free_ports
from loadtest.kit.daemons import wait_until
from tests.functional.node import MakeCluster, Pull, bytes_done, push

SIZE = 16 << 20
RATE = SIZE // 40  # of each agent's reads: two agents read for 20 s
TAKEOVER_S = (
    14.0  # ten until the tenure is over, one to see it, one to connect, and some for a busy machine
)
NEW_PULL_S = 2.0
BUSY_S = 2.0  # for a machine that runs other tests, too
ALPHA = 1.05


@pytest.fixture
def large(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(random.Random(5).randbytes(SIZE))
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(random.Random(6).randbytes(64 << 10))
    return folder


def tracker_of(agent: Agent) -> dict[str, Any]:
    told = agent.client.status()["tracker"]
    assert isinstance(told, dict)
    return told


def members_at(agents: list[Agent], url: str) -> bool:
    told = [tracker_of(agent) for agent in agents]
    return all(t["connected"] and t["url"] == url for t in told)


def check_takeover(cluster: Cluster, large: Path, small: Path, fault: signal.Signals) -> None:
    first, second = cluster.tracker_url.split(",")
    push(cluster, large, "large:v1")
    push(cluster, small, "small:v1")
    wait_until(lambda: members_at(cluster.agents, first), 20)
    pulls = [Pull(agent, "large:v1") for agent in cluster.agents]
    wait_until(lambda: min(bytes_done(agent) for agent in cluster.agents) > SIZE // 20, 20)
    began = time.monotonic()
    os.kill(cluster.tracker.pid, fault)
    wait_until(lambda: members_at(cluster.agents, second), 3 * TAKEOVER_S)
    assert time.monotonic() - began < TAKEOVER_S
    waited = Pull(cluster.agents[0], "small:v1").wait()["report"]["waited"]
    assert (
        waited.get("lease", 0) + waited.get("tracker", 0) < NEW_PULL_S
    )  # reads of both models share the rate
    if fault is signal.SIGSTOP:
        os.kill(cluster.tracker.pid, signal.SIGCONT)
    done = [pull.wait(90) for pull in pulls]
    assert sum(d["bytes_origin"] for d in done) <= ALPHA * SIZE
    for agent, one in zip(cluster.agents, done, strict=True):
        assert (agent.tree(one["path"]) / "weights.bin").read_bytes() == (
            large / "weights.bin"
        ).read_bytes()
    assert members_at(cluster.agents, second)


@pytest.mark.slow
@pytest.mark.functional
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_pulls_survive_their_tracker(
    make_cluster: MakeCluster, large: Path, small: Path, fault: signal.Signals
) -> None:
    flags = ["--origin-bytes-per-s", str(RATE)]
    cluster = make_cluster(agents=2, trackers=2, agent_flags=flags)
    check_takeover(cluster, large, small, fault)


@pytest.mark.slow
@pytest.mark.functional
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_new_pull_begins_while_no_tracker_is_active(
    make_cluster: MakeCluster, other_model: Path, fault: signal.Signals
) -> None:
    """It waited for the takeover: 11 s."""
    cluster = make_cluster(agents=2, trackers=2)
    first = cluster.tracker_url.split(",")[0]
    push(cluster, other_model)
    wait_until(lambda: members_at(cluster.agents, first), 20)
    os.kill(cluster.tracker.pid, fault)
    began = time.monotonic()
    done = [pull.wait(20) for pull in [Pull(agent, "m:v1") for agent in cluster.agents]]
    assert time.monotonic() - began < NEW_PULL_S + BUSY_S
    assert sum(d["bytes_origin"] for d in done) <= ALPHA * done[0]["bytes"], "they agree who reads"
    if fault is signal.SIGSTOP:
        os.kill(cluster.tracker.pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.functional
def test_an_ordered_end_hands_over_at_once(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=1, trackers=2)
    first, second = cluster.tracker_url.split(",")
    wait_until(lambda: members_at(cluster.agents, first), 20)
    cluster.tracker.stop()
    began = time.monotonic()
    wait_until(lambda: members_at(cluster.agents, second), 20)
    assert time.monotonic() - began < 5.0
    cluster.tracker.start()
    push(cluster, model)
    Pull(cluster.agents[0], "m:v1").wait()
    assert members_at(cluster.agents, second)


@pytest.mark.slow
@pytest.mark.functional
def test_a_lease_without_an_origin_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(agents=0)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    done = cluster.run("tracker", "--lease", "origin", "--listen", listen, agent=None, code=2)
    assert "--origin" in done.stderr

"""Daemons that hang: their connections stay open, and nothing answers."""

import os
import signal
import time
from pathlib import Path

import pytest

from loadtest.kit.daemons import Daemon, wait_until
from p2pcache.errors import Unreachable
from tests.functional.node import MakeCluster, Pull, push

NOTICED_S = 16.0  # ten of silence, and some for a busy machine


def freeze(daemon: Daemon) -> float:
    os.kill(daemon.pid, signal.SIGSTOP)
    return time.monotonic()


def thaw(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_hanging_tracker_and_a_hanging_agent_are_noticed(
    make_cluster: MakeCluster, model: Path
) -> None:
    cluster = make_cluster(agents=2)
    push(cluster, model)
    one, other = cluster.agents
    Pull(one, "m:v1").wait()

    def connected() -> bool:
        told = one.client.status()["tracker"]
        return isinstance(told, dict) and bool(told["connected"])

    def listed() -> int:
        try:
            return len(other.client.nodes())
        except Unreachable:  # its agent hasn't noticed the tracker's return yet
            return -1

    began = freeze(cluster.tracker)
    wait_until(lambda: not connected(), 2 * NOTICED_S)
    assert time.monotonic() - began < NOTICED_S
    thaw(cluster.tracker)
    wait_until(connected, 30)
    wait_until(lambda: listed() == 2, 30)

    Pull(other, "m:v1").wait()
    began = freeze(one)
    wait_until(lambda: listed() == 1, 2 * NOTICED_S)
    wait_until(lambda: not other.client.status()["peers"], NOTICED_S)
    assert time.monotonic() - began < NOTICED_S
    thaw(one)
    wait_until(lambda: listed() == 2, 30)

"""Another cluster key for a swarm that runs (docs/trust.md). Real daemons, each with a file of its own."""

import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import Daemon, wait_until
from loadtest.kit.models import check_tree, make_model
from tests.functional.node import Pull, bytes_done, push

SIZE = 12_000_000
CHANGED = "another cluster key from"
SLOW = ("--download-bytes-per-s", "1MB", "--origin-bytes-per-s", "1MB")


class KeyedCluster(Cluster):
    """Each daemon has a copy of the key file."""

    def file_of(self, daemon: Daemon) -> Path:
        return self.root / f"{daemon.name}.key"

    def own_file(self, daemon: Daemon) -> None:
        shutil.copy(self.key_file, self.file_of(daemon))
        daemon.command = [
            str(self.file_of(daemon)) if word == str(self.key_file) else word
            for word in daemon.command
        ]

    def write_keys(self, daemon: Daemon, *keys: str) -> None:
        """Replace a daemon's file, and have it read."""
        fresh = self.file_of(daemon).with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text("".join(key + "\n" for key in keys))
        lines = daemon.tail(1000).count(CHANGED)
        fresh.replace(self.file_of(daemon))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: daemon.tail(1000).count(CHANGED) > lines, 15)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KeyedCluster]:
    (tmp_path / "origin").mkdir()
    made = KeyedCluster((tmp_path / "origin").as_uri(), agents=3, agent_flags=SLOW)
    for daemon in (made.tracker, *made.agents):
        made.own_file(daemon)
    with made:
        yield made


def everybody(cluster: KeyedCluster) -> list[Daemon]:
    return [cluster.tracker, *cluster.agents]


def meet_anew(cluster: KeyedCluster, agent: Agent) -> None:
    """New connections of an agent: to the tracker, and to the others."""
    agent.stop()
    agent.start()
    wait_until(agent.ready, 30)


@pytest.mark.slow
def test_the_key_is_changed_while_pulls_run(cluster: KeyedCluster, tmp_path: Path) -> None:
    old, new = cluster.key_file.read_text().strip(), secrets.token_hex(32)
    model = make_model(tmp_path / "model", SIZE)
    push(cluster, model)
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents[:2]]
    wait_until(lambda: all(bytes_done(agent) > 0 for agent in cluster.agents[:2]), 30)
    third = cluster.agents[2]
    for keys in ((old, new), (new, old), (new,)):
        for daemon in everybody(cluster):
            cluster.write_keys(daemon, *keys)
            if daemon is cluster.agents[0]:  # half of them have the next keys
                meet_anew(cluster, third)
    for pull in pulls:
        check_tree(pull.agent.tree(str(pull.wait(90)["path"])), model)  # no pull was interrupted
    check_tree(Path(cluster.run("pull", "m:v1", agent=2).stdout.strip()), model)
    for daemon in everybody(cluster):
        assert "another cluster key;" not in daemon.tail(1000), "somebody was refused meanwhile"

    cluster.write_keys(third, secrets.token_hex(32))
    third.stop()
    third.start(wait=False)
    wait_until(lambda: "another cluster key;" in third.tail(), 30)  # other keys are shut out


@pytest.mark.slow
def test_a_file_that_holds_no_key_changes_nothing(cluster: KeyedCluster) -> None:
    agent = cluster.agents[0]
    cluster.file_of(agent).write_text("short\n")
    wait_until(lambda: "going on with the cluster key" in agent.tail(), 30)  # seen without a signal
    assert agent.ready()
    assert "agent-1" not in cluster.run("nodes").stderr

"""Upgrading a cluster node by node: daemons of the release before beside those of this one."""

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

from loadtest.kit.cluster import Cluster, last_event, run_command
from loadtest.kit.daemons import P2PCACHE, Daemon, wait_until
from loadtest.kit.models import check_tree, make_model, total_bytes
from tests.functional.node import MakeCluster, Pull, bytes_done, push

ROOT = Path(__file__).parents[2]
# The release before this one; a release moves it on to the tag (or commit) that it replaces.
BEFORE = "7487e06266f178a32e009960b042c30cd2635caa"
SLOW = ("--origin-bytes-per-s", "6MiB", "--flush-interval-s", "0.3")


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Put before a command, `python -m p2pcache...` is the release before, out of git's history."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", BEFORE, "p2pcache", "agent", "tracker", "cli"],
        capture_output=True, check=False,
    )  # fmt: skip
    if archive.returncode:
        pytest.skip("no git history here that reaches back to the release before")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    # Without the safe path, the working directory would come before PYTHONPATH.
    prefix = ["env", f"PYTHONPATH={folder}", "PYTHONSAFEPATH=1"]
    ask = [*prefix, sys.executable, "-c", "import p2pcache.agent.app as a; print(a.__file__)"]
    found = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(folder)
    return prefix


def turn_old(before: Sequence[str], *daemons: Daemon) -> None:
    """They run the release before when they are started next."""
    for daemon in daemons:
        daemon.command = [*before, *daemon.command]


def turn_new(before: Sequence[str], *daemons: Daemon) -> None:
    """They run this release when they are started next."""
    for daemon in daemons:
        assert daemon.command[: len(before)] == before
        daemon.command = daemon.command[len(before) :]


@pytest.mark.parametrize("old_tracker", [True, False], ids=["old-tracker", "new-tracker"])
def test_one_swarm_of_two_releases(
    origin_dir: Path, tmp_path: Path, before: list[str], model: Path, old_tracker: bool
) -> None:
    cluster = Cluster(f"file://{origin_dir}", agents=4)
    turn_old(before, *cluster.agents[:2])
    if old_tracker:
        turn_old(before, cluster.tracker)
    with cluster:
        push(cluster, model)
        done = cluster.pull_everywhere("m:v1")
        for event in done:
            check_tree(Path(event["path"]), model)
        # A storm: storage gives each chunk about once, the rest goes from node to node.
        assert sum(int(e["bytes_origin"]) for e in done) < 1.5 * total_bytes(model)
        # And each way alone: what only an old node has, a new one takes from it, and back.
        for number, (first, second) in enumerate([(0, 2), (2, 1)]):
            ref = f"small-{number}:v1"
            small = make_model(tmp_path / ref, 2 << 20, shards=1, seed=10 + number)
            push(cluster, small, ref)
            cluster.run("pull", ref, agent=first)
            event = last_event(cluster.run("pull", ref, "--json", agent=second).stdout)
            check_tree(Path(event["path"]), small)
            assert event["bytes_peers"] > event["bytes_origin"]
        for agent in cluster.agents:
            assert "broke the protocol" not in agent.log()
        assert "broke" not in cluster.tracker.log()


def test_an_old_command_talks_to_a_new_agent(
    make_cluster: MakeCluster, before: list[str], other_model: Path
) -> None:
    """Pods bring their own image, often older than the node's agent."""
    cluster = make_cluster(agents=1)
    environ = cluster.environ | {"P2PCACHE_AGENT": cluster.agents[0].url}
    run_command("push", str(other_model), "m:v1", environ=environ, prefix=before)
    done = last_event(run_command("pull", "m:v1", "--json", environ=environ, prefix=before).stdout)
    check_tree(Path(done["path"]), other_model)
    for command in ("ls", "status", "ps", "nodes", "history"):
        run_command(command, environ=environ, prefix=before)


@pytest.mark.parametrize("old_tracker", [True, False], ids=["old-tracker", "old-agent"])
def test_who_does_not_know_how_to_warm_is_spared(
    origin_dir: Path, before: list[str], other_model: Path, old_tracker: bool
) -> None:
    cluster = Cluster(f"file://{origin_dir}", agents=2)
    turn_old(before, cluster.tracker if old_tracker else cluster.agents[1])
    with cluster:
        push(cluster, other_model)
        ended = cluster.run("warm", "m:v1", "--replicas", "2", code=2 if old_tracker else 3)
        wanted = "doesn't know the question 'warm'" if old_tracker else "1 of an older release"
        assert wanted in ended.stderr
        cluster.run("warm", "m:v1", "--wait")
        assert cluster.agents[1].ready(), "what it doesn't know was never said to it"


def test_a_node_is_upgraded_in_the_middle_of_a_pull(
    origin_dir: Path, before: list[str], model: Path, other_model: Path
) -> None:
    """Its cache is read on: what was complete is there, what was half here goes on from there."""
    cluster = Cluster(f"file://{origin_dir}", agents=1, agent_flags=SLOW)
    (agent,) = cluster.agents
    turn_old(before, agent)
    with cluster:
        push(cluster, model)
        push(cluster, other_model, "small:v1")
        cluster.run("pull", "small:v1")
        pull = Pull(agent, "m:v1")
        wait_until(lambda: bytes_done(agent) > 6 << 20, 60)
        agent.stop()
        pull.join(60)
        turn_new(before, agent)
        agent.start()
        again = last_event(cluster.run("pull", "small:v1", "--json").stdout)
        assert again["bytes_origin"] == again["bytes_peers"] == 0
        check_tree(Path(again["path"]), other_model)
        rest = last_event(cluster.run("pull", "m:v1", "--json").stdout)
        check_tree(Path(rest["path"]), model)
        assert rest["bytes_origin"] < total_bytes(model) - (4 << 20)
        assert "small" in cluster.run("history").stdout


def test_the_tracker_is_upgraded_under_a_storm(
    origin_dir: Path, before: list[str], model: Path
) -> None:
    cluster = Cluster(f"file://{origin_dir}", agents=3, agent_flags=SLOW)
    turn_old(before, cluster.tracker, cluster.agents[0])
    with cluster:
        push(cluster, model)
        pulls = [Pull(agent, "m:v1") for agent in cluster.agents]
        wait_until(lambda: all(bytes_done(agent) for agent in cluster.agents), 60)
        cluster.tracker.stop()
        turn_new(before, cluster.tracker)
        cluster.tracker.start()
        done = [pull.wait() for pull in pulls]
        for agent, event in zip(cluster.agents, done, strict=True):
            check_tree(agent.tree(str(event["path"])), model)
        assert sum(int(e["bytes_origin"]) for e in done) < 1.5 * total_bytes(model)


def test_the_release_before_can_be_gone_back_to(
    origin_dir: Path, before: list[str], other_model: Path
) -> None:
    """The cache of this release is opened, or refused in one line; its bytes stay either way."""
    cluster = Cluster(f"file://{origin_dir}", agents=1)
    (agent,) = cluster.agents
    with cluster:
        push(cluster, other_model)
        tree = Path(cluster.run("pull", "m:v1").stdout.strip())
        agent.stop()
        turn_old(before, agent)
        started = subprocess.run(
            [*before, *P2PCACHE, "ls", "--cache-dir", str(agent.cache_dir)],
            env=cluster.environ, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        if started.returncode:
            assert "newer release" in started.stderr
            (agent.cache_dir / "agent.db").unlink()  # docs/operations.md
        agent.start()
        done = last_event(cluster.run("pull", "m:v1", "--json").stdout)
        assert done["bytes_origin"] == done["bytes_peers"] == 0
        check_tree(tree, other_model)

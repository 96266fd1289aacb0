"""A node that keeps room, in real processes: it is killed while models go and come, and no half model is shown."""

import contextlib
import random
from pathlib import Path

import pytest

from loadtest.kit.cluster import Agent
from loadtest.kit.models import check_tree, make_model
from p2pcache.errors import Conflict, NotFound
from tests.functional.node import MakeCluster, Pull, push

MB = 1 << 20
MODELS = 5
ROUNDS = 10


def check_shown(agent: Agent, folder: Path) -> set[str]:
    """Whatever the cache shows is whole, and what isn't shown takes no space; the states of its models."""
    for link in (agent.cache_dir / "models/library").glob("*/v1"):
        check_tree(link.resolve(strict=True), folder / link.parent.name)
    states = set()
    for row in agent.client.models():
        shown = (agent.cache_dir / "models/library" / row["name"] / "v1").is_symlink()
        states.add("remote" if row["remote"] else "complete" if row["complete"] else "part")
        if row["remote"]:
            assert (row["bytes_done"], row["complete"], shown) == (0, False, False)
        if row["complete"]:
            (*_, last) = agent.client.verify(row["ref"])
            assert last["chunks_bad"] == last["chunks_missing"] == 0
    return states


@pytest.mark.slow
def test_killed_at_any_moment_it_shows_whole_models_alone(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    flags = ("--cache-quota", "21MiB", "--cache-low", "0.6", "--flush-interval-s", "0.1")
    cluster = make_cluster(agents=1, agent_flags=flags)
    for number in range(MODELS):
        make_model(tmp_path / f"m{number}", 6 * MB, shards=3, seed=number)
        push(cluster, tmp_path / f"m{number}", f"m{number}:v1")
    agent, dice, seen = cluster.agents[0], random.Random(7), set[str]()
    for _ in range(ROUNDS):
        pulls = [Pull(agent, f"m{number}:v1") for number in dice.sample(range(MODELS), 3)]
        for number in range(MODELS):
            with contextlib.suppress(NotFound, Conflict):  # it isn't here, or is pulled right now
                agent.client.evict(f"m{number}:v1")
        pulls[0].join(dice.uniform(0, 0.5))
        agent.kill()
        for pull in pulls:
            pull.join(20)
        agent.start()
        seen |= check_shown(agent, tmp_path)
    assert {"remote", "complete"} <= seen
    done = Pull(agent, "m0:v1").wait()
    check_tree(agent.tree(str(done["path"])), tmp_path / "m0")
    agent.client.evict(to_bytes=0)
    agent.client.prune(dry_run=False, everything=False)
    assert not list((agent.cache_dir / "blobs").iterdir()), "space has leaked"
    assert {row["remote"] for row in agent.client.models()} == {True}

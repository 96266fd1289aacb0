"""What must hold in a pool whose processes are killed: whole trees, true wishes, nothing lost that was acknowledged."""

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.models import check_tree
from loadtest.soak.ledger import Ledger
from p2pcache.errors import P2PCacheError
from p2pcache.io.intents.in_origin import Intents
from p2pcache.io.origins import open_origin


class Scene(Protocol):
    """What is looked at (`pool_scene.PoolScene`)."""

    cluster: Cluster
    pins: Ledger
    wishes: Ledger
    whole: set[Hashable]  # pins of models that were whole when they were pinned

    @property
    def agents(self) -> Sequence[Agent]:
        """All of them."""


def is_whole(agent: Agent, ref: str) -> bool:
    """Whether an agent says that all of a model is there."""
    return any(row["complete"] and ref in row["refs"] for row in agent.client.models())


def wish_of(
    copies: int = 0, nodes: str = "", *, whole: bool = False, everywhere: bool = False
) -> str:
    """A wish, to be compared."""
    kind = "whole" if whole or everywhere else "parts"
    return f"{copies} {kind} {'all' if everywhere else ''} {nodes}".strip()


def half_shown(agent: Agent, sources: Mapping[str, Path]) -> str:
    """Whether each tree of an agent is whole. `sources`: of models, by digest."""
    models = agent.cache_dir / "models"
    trees = [path for path in models.glob("*/*/@*") if not path.parent.name.startswith(".")]
    for tree in trees:
        source = sources.get(tree.name[1:])
        if source is None:
            return f"BROKEN {tree} is no model that anybody pushed"
        try:
            check_tree(tree, source)
        except (AssertionError, OSError) as error:
            if tree.is_dir():  # of an agent that lives it may just have gone
                return f"BROKEN half a model is shown: {error}"
    return f"killed; {len(trees)} trees are whole"


def lost(scene: Scene) -> list[str]:
    """The pins, holds and intents that aren't as they must be."""
    found: dict[Hashable, str] = {}
    for number, agent in enumerate(scene.agents):
        for row in agent.client.pins():
            found[number, row["kind"], row["name"]] = "there"
    wrong = scene.pins.settle(found)
    stored: dict[Hashable, str] = {}
    with contextlib.closing(open_origin(scene.cluster.origin)) as origin:
        read = Intents(origin).read_all()
    for ref, record in read.keeps.items():
        stored[ref.short] = wish_of(
            record.copies, record.nodes, whole=record.whole, everywhere=record.everywhere
        )
    for drain in read.drains.values():
        stored[drain.name] = "drained"
    wrong += [f"{key}: {why}" for key, why in read.bad.items()]
    told = {row["ref"]: row for row in scene.agents[0].client.keeps()["keeps"]}
    if told.keys() != {ref.short for ref in read.keeps}:
        wrong.append(f"the tracker keeps {sorted(told)}, storage says {sorted(read.keeps)}")
    return wrong + scene.wishes.settle(stored)


def pinned_away(scene: Scene) -> list[str]:
    """Models that are pinned on a node and were whole there, and aren't any more."""
    return [
        f"agent {number}: {row['ref']} is pinned and isn't here any more"
        for number, agent in enumerate(scene.agents)
        for row in agent.client.pins()
        if (number, row["kind"], row["name"]) in scene.whole and not is_whole(agent, row["ref"])
    ]


def unkept(agent: Agent) -> list[str]:
    """What is kept and isn't true yet."""
    try:
        told = agent.client.keeps()
    except P2PCacheError as error:
        return [str(error)]
    return [
        f"{row['ref']} {row['wish']}: {row['state']}, {row['missing_bytes']} bytes missing, {row['refused']} "
        f"{row['trouble']}"
        for row in told["keeps"] if row["state"] != "kept" or row["trouble"]
    ]  # fmt: skip

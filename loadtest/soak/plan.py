"""What a soak does, made from a seed alone: the same seed gives the same actions, whatever came of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

AGENTS = 8
STEADY = 3  # the first ones are never killed: leaks show in processes that live long
SMALL = 6  # index of the one whose cache is a small file system (root)
LIAR = 7  # index of the one that serves wrong bytes in every other of its lives
ORIGIN_FAULTS = ("busy", "reset", "truncate", "stall", "freeze", "latency")

# How often each kind is drawn. Most are work; every fourth or so is a fault.
WEIGHTS = {
    "pull": 30, "storm": 8, "abandon": 8, "verify": 4, "remove": 10, "prune": 4, "push": 6,
    "kill": 5, "restart": 3, "freeze": 4, "tracker": 3, "storage": 2, "origin": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, `wait_s` after the one before."""

    wait_s: float
    kind: str
    agents: tuple[int, ...] = ()
    model: int = 0  # which of the live models; for a push, the seed of a new one
    seconds: float = 0.0  # how long a fault lasts, or when a client leaves
    detail: str = ""


def actions(seed: int) -> Iterator[Action]:
    """Actions without end."""
    dice = random.Random(f"soak/{seed}")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        (kind,) = dice.choices(kinds, weights)
        yield _action(kind, dice)


def _action(kind: str, dice: random.Random) -> Action:
    wait, model = dice.uniform(0.1, 1.5), dice.randrange(1 << 30)
    everyone = range(AGENTS)
    mortal = range(STEADY, AGENTS)
    match kind:
        case "storm":
            agents = tuple(dice.sample(everyone, dice.randint(3, AGENTS)))
            return Action(wait, kind, agents, model)
        case "kill" | "restart":
            return Action(wait, kind, (dice.choice(mortal),), seconds=dice.uniform(0, 4))
        case "freeze":
            return Action(wait, kind, (dice.choice(everyone),), seconds=dice.uniform(1, 20))
        case "tracker":  # beyond 20 s (lease TTL and grace) the agents do without
            return Action(wait, kind, seconds=dice.choice((0.0, dice.uniform(0, 5), 25.0)))
        case "storage":
            return Action(wait, kind, seconds=dice.uniform(0, 5))
        case "origin":
            fault = dice.choice(ORIGIN_FAULTS)
            return Action(wait, kind, seconds=dice.uniform(1, 6), detail=fault)
        case _:
            agent = (dice.choice(everyone),)
            return Action(wait, kind, agent, model, dice.uniform(0.02, 1.5))

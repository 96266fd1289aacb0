"""What a soak of the pool does, made from a seed alone: flows, and when in them processes are killed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

AGENTS = 5
NAMES = 6  # models, each with a tag that moves to new versions
MODEL_BYTES = (1 << 20, 3 << 20, 6 << 20)

# How often each flow is drawn. "idle": nothing, so that a kill hits whatever goes on.
WEIGHTS = {
    "pull": 16, "hold": 6, "release": 3, "evict": 9, "shrink": 5, "prune": 4, "remove": 3, "pin": 6, "unpin": 4,
    "keep": 10, "off": 4, "drain": 4, "push": 5, "copy": 3, "verify": 3, "idle": 5,
}  # fmt: skip
BY_COMMAND = frozenset({"push", "copy"})  # run as a process of their own, which can be killed
TRACKERS = frozenset({"keep", "off", "drain"})  # flows that the tracker carries out
STRIKES = 0.55  # share of the flows in which somebody is killed
SOON_S = 0.5  # most flows take less: a kill hits their middle, their end, or just what they left

Victim = Literal["", "agent", "tracker", "command"]


@dataclass(frozen=True, slots=True)
class Step:
    """One flow, `wait_s` after the one before, and who is killed in it."""

    wait_s: float
    flow: str
    agent: int
    name: int  # which model
    dice: int  # what else the flow draws from
    victim: Victim = ""
    kill_s: float = 0.0  # after the flow's begin
    dead_s: float = 0.0  # until the victim is started again


def steps(seed: int) -> Iterator[Step]:
    """Steps without end."""
    dice = random.Random(f"soak-pool/{seed}")
    flows, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        (flow,) = dice.choices(flows, weights)
        strikes = flow == "idle" or dice.random() < STRIKES
        yield Step(
            dice.uniform(0.05, 0.9), flow, dice.randrange(AGENTS), dice.randrange(NAMES), dice.randrange(1 << 30),
            _victim(flow, dice) if strikes else "", dice.uniform(0.0, SOON_S),
            dice.choice((0.0, dice.uniform(0.0, 3.0), 6.0)),
        )  # fmt: skip


def _victim(flow: str, dice: random.Random) -> Victim:
    if flow in BY_COMMAND and dice.random() < 0.6:
        return "command"
    return "tracker" if dice.random() < (0.5 if flow in TRACKERS else 0.15) else "agent"

"""How much of a host the agent may use while an engine serves there: less while the host is busy, more when it is calm.

The measurements become one number, the *strain*: 1 is the most that serving should see. The share follows additive
increase and multiplicative decrease (Chiu and Jain 1989): from a strain of 1 on it shrinks by a factor, well below 1 it
grows by a step. In between it stays, so that it settles instead of swinging. It never falls below a floor, so peers get
their bytes late, but they get them.
"""

import math
from typing import Literal, NamedTuple

from p2pcache.core.host.settings import (
    AIM,
    CALM,
    CPU_STALL,
    FLOOR_BYTES_PER_S,
    FORGET_PER_S,
    GROWTH,
    HARDEST,
    IO_STALL,
    LINK_USE,
    MEMORY_STALL,
    STEP,
)

Mode = Literal["auto", "on", "off"]


class Sample(NamedTuple):
    """Measurements since the last sample; None: can't be measured here."""

    # Shares of the time in which some task waited for it, 0 to 1.
    cpu: float | None = None
    io: float | None = None
    memory: float | None = None
    link: float | None = None  # busier direction of the busiest interface, of its rate
    # Latency of the engine over its target, or the strain that it reports.
    engine: float | None = None
    sent: float = 0.0  # payload to peers, bytes per second
    taken: float = 0.0  # from peers and the origin, bytes per second
    link_rate: float = 0.0  # bytes per second that the fastest interface carries; 0: unknown


class Limits(NamedTuple):
    """Limits until the next sample."""

    share: float  # of full speed, `floor` to 1
    rate: float  # each way, bytes per second; 0: as the settings say
    slots: int  # uploads at once
    cause: str  # the largest strain's name; "" below 1
    strain: float


class Governor:
    """Decides by samples how much this node sends and takes.

    Invariants (`check`): the share lies between floor and 1; at 1 nothing is limited.
    """

    def __init__(self, mode: Mode, *, floor: float, slots: int) -> None:
        """Start at full speed.

        Args:
            mode: "off": always full speed. "on": every measurement counts. "auto": they count only while an engine
                reports its latency; without one the host is busy with loading the model.
            floor: the smallest share, above 0.
            slots: uploads at once at full speed.
        """
        self._mode = mode
        self._floor = floor
        self._slots = slots
        self._peak = 0.0  # the highest rate one way, bytes per second: full speed
        self._at: float | None = None
        self.limits = Limits(1.0, 0.0, slots, "", 0.0)

    @property
    def governs(self) -> bool:
        """Whether the agent is held back now."""
        return self.limits.share < 1

    def handle(self, sample: Sample, now: float) -> Limits:
        """Take in a sample at `now` (monotonic seconds); returns the limits until the next one."""
        passed = 0.0 if self._at is None else min(max(0.0, now - self._at), 5.0)
        self._at = now
        peak = max(self._peak * FORGET_PER_S**passed, sample.sent, sample.taken)
        # Bytes from a socket's buffer or from storage on this host may come faster than any link carries.
        self._peak = min(peak, sample.link_rate) if sample.link_rate else peak
        counts = self._mode == "on" or (self._mode == "auto" and sample.engine is not None)
        strains = strains_of(sample) if counts else {}
        cause, strain = max(strains.items(), key=lambda item: item[1], default=("", 0.0))
        share, rate = self.limits.share, 0.0
        if strain >= 1:
            share = max(self._floor, share * max(HARDEST, AIM / strain))
        elif strain < CALM:
            share = min(1.0, share + min(STEP, GROWTH * share) * passed)
        if share < 1:
            rate = max(share * self._peak, FLOOR_BYTES_PER_S)
        slots = max(1, math.ceil(share * self._slots))
        self.limits = Limits(share, rate, slots, cause if strain >= 1 else "", strain)
        return self.limits

    def check(self) -> None:
        """Assert the invariants (tests)."""
        limits = self.limits
        assert self._floor <= limits.share <= 1
        assert 1 <= limits.slots <= self._slots
        if limits.share < 1:
            assert limits.rate >= FLOOR_BYTES_PER_S
        else:
            assert not limits.rate
            assert limits.slots == self._slots


def strains_of(sample: Sample) -> dict[str, float]:
    """Each measurement over the most that serving should see, by name."""
    most = {
        "cpu": CPU_STALL, "io": IO_STALL, "memory": MEMORY_STALL, "link": LINK_USE, "engine": 1.0,
    }  # fmt: skip
    return {name: seen / most[name] for name in most if (seen := getattr(sample, name)) is not None}

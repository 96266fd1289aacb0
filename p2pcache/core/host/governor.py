"""How much of this node its engine leaves to us: less while the host is busy, more when it isn't. Pure.

What is measured becomes one number, the *strain*: 1 is the most that serving should ever see. At a
strain of 1 our share shrinks by a factor, well below it grows by a step, and between the two it
stays, so that it settles instead of swinging. It never falls below a floor: whoever waits for bytes
of this node gets them late, but gets them.
"""

import math
from typing import Literal, NamedTuple

Mode = Literal["auto", "on", "off"]

CALM = 0.7  # strain below which the share grows; up to 1 it stays
STEP = 0.05  # a second, of the whole ..
GROWTH = (
    0.1  # .. and of the share: strain that shows two looks late must not meet three steps too many
)
HARDEST = 0.5  # one look takes no more than half: one bad second isn't the end of a storm
AIM = 0.9  # strain that a smaller share aims at
FLOOR_BYTES_PER_S = 1 << 20  # a peer's run of 16 MiB in 16 s, also where nothing ever went fast
FORGET_PER_S = 0.999  # of the highest rate seen: a link that got slower is believed in 20 minutes

# Strain 1, as a share of the time in which some task stalled (PSI `some`), or of the link's rate.
CPU_STALL = 0.40  # a host at 80 % of its cores shows 0.2 to 0.3
IO_STALL = 0.20  # an engine reads little: what stalls for so long is our own doing
MEMORY_STALL = 0.05  # reclaim hurts at once
LINK_USE = 0.85  # above it queues grow, and with them every answer's time


class Sample(NamedTuple):
    """What was seen since the last look; None: can't be told here."""

    cpu: float | None = None  # shares of the time in which some task waited, 0 to 1
    io: float | None = None
    memory: float | None = None
    link: float | None = None  # busier direction of the busiest interface, of its rate
    engine: float | None = None  # its latency over the one that it should have, or as it says
    sent: float = 0.0  # payload to peers, bytes per second
    taken: float = 0.0  # from peers and the origin, bytes per second
    link_rate: float = 0.0  # bytes per second that the fastest interface carries; 0: unknown


class Limits(NamedTuple):
    """What we may do until the next look. Rates are bytes per second; 0: as the settings say."""

    share: float  # of what we could do, `floor` to 1
    sent: float
    taken: float
    slots: int  # uploads at once
    cause: str  # what strains most, "" below 1
    strain: float


class Governor:
    """Decides by samples how much this node gives and takes.

    Invariants (`check`): the share lies between floor and 1; at 1 nothing is limited.
    """

    def __init__(self, mode: Mode, *, floor: float, slots: int) -> None:
        """Start at full speed.

        Args:
            mode: "off": never less than everything; "on": everything measured counts; "auto":
                only while an engine tells how it does, for without one there is nobody to give
                way to, and a busy host is busy with the model that it waits for.
            floor: the smallest share, above 0.
            slots: uploads at once at full speed.
        """
        self._mode = mode
        self._floor = floor
        self._slots = slots
        self._peak = 0.0  # bytes per second that we have moved one way: what a share is of
        self._at: float | None = None
        self.limits = Limits(1.0, 0.0, 0.0, slots, "", 0.0)

    @property
    def governs(self) -> bool:
        """Whether something is held back now."""
        return self.limits.share < 1

    def handle(self, sample: Sample, now: float) -> Limits:
        """Take in a sample; returns the limits until the next one (`now`: monotonic seconds)."""
        passed = 0.0 if self._at is None else min(max(0.0, now - self._at), 5.0)
        self._at = now
        peak = max(self._peak * FORGET_PER_S**passed, sample.sent, sample.taken)
        # Bytes from a socket's buffer or a storage in this host may come faster than any link.
        self._peak = min(peak, sample.link_rate) if sample.link_rate else peak
        cause, strain = self._strain(sample)
        share = self.limits.share
        if strain >= 1:
            share = max(self._floor, share * max(HARDEST, AIM / strain))
        elif strain < CALM:
            share = min(1.0, share + min(STEP, GROWTH * share) * passed)
        self.limits = self._limits(share, cause if strain >= 1 else "", strain)
        return self.limits

    def check(self) -> None:
        """Assert the invariants (tests)."""
        limits = self.limits
        assert self._floor <= limits.share <= 1
        assert 1 <= limits.slots <= self._slots
        if limits.share < 1:
            assert min(limits.sent, limits.taken) >= FLOOR_BYTES_PER_S
        else:
            assert not limits.sent + limits.taken
            assert limits.slots == self._slots

    def _strain(self, sample: Sample) -> tuple[str, float]:
        if self._mode == "off" or (self._mode == "auto" and sample.engine is None):
            return "", 0.0
        strains = strains_of(sample)
        return max(strains.items(), key=lambda item: item[1], default=("", 0.0))

    def _limits(self, share: float, cause: str, strain: float) -> Limits:
        if share >= 1:
            return Limits(1.0, 0.0, 0.0, self._slots, cause, strain)
        rate = max(share * self._peak, FLOOR_BYTES_PER_S)
        slots = min(self._slots, max(1, math.ceil(share * self._slots)))
        return Limits(share, rate, rate, slots, cause, strain)


def strains_of(sample: Sample) -> dict[str, float]:
    """What was measured, each over the most that serving should see."""
    most = {
        "cpu": CPU_STALL,
        "io": IO_STALL,
        "memory": MEMORY_STALL,
        "link": LINK_USE,
        "engine": 1.0,
    }
    return {name: seen / most[name] for name in most if (seen := getattr(sample, name)) is not None}

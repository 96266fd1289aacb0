"""A pull of one member, as the tracker hears of it. It is for people to see: nothing is decided by it."""

from dataclasses import dataclass
from enum import StrEnum

Taken = tuple[int, int, int]
"""Bytes that a member took of a model since its start: from peers, the origin, its own cache."""


class PullEnd(StrEnum):
    """How a pull ended."""

    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"  # somebody ended it, or all who waited for it left: no failure
    LEFT = "left"  # its node said goodbye
    LOST = "lost"  # its node fell silent


@dataclass(slots=True, frozen=True)
class RunningPull:
    """A member fetches all of a model."""

    since: float  # when the tracker heard of it, seconds
    before: Taken  # what the member had taken by then

    def brought(self, taken: Taken) -> Taken:
        """Bytes that the pull brought; a total that shrank is that of a new process."""
        return (
            _grown(self.before[0], taken[0]),
            _grown(self.before[1], taken[1]),
            _grown(self.before[2], taken[2]),
        )

    def rate(self, taken: Taken, now: float) -> float:
        """Bytes a second that came from elsewhere, on average since it began."""
        peers, origin, _ = self.brought(taken)
        return (peers + origin) / max(1.0, now - self.since)


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now

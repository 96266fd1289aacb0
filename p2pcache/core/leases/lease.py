"""One grant: a node may read one run from the origin; and what was granted and ended lately."""

from collections import deque
from dataclasses import dataclass, field

STORY_ENTRIES = 2000  # the last few minutes of a storm, at about 100 bytes each


@dataclass(slots=True)
class Lease:
    """A grant that runs. Times are the tracker's monotonic seconds."""

    node: int
    since: float
    expires: float
    adopted: bool = False  # the read began before it
    others: set[int] = field(default_factory=set)  # bearers that came to have the run meanwhile


class Story:
    """What happened to leases lately, for people."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int, str, int]] = deque(maxlen=STORY_ENTRIES)

    def note(self, now: float, run: int, what: str, node: int) -> None:
        """One thing more; node -1: it concerns nobody."""
        self._entries.append((now, run, what, node))

    def of(self, run: int) -> list[str]:
        """What happened to a run, oldest first."""
        return [
            f"{when:.3f} {what}" + (f" {node:016x}" if node >= 0 else "")
            for when, r, what, node in self._entries
            if r == run
        ]

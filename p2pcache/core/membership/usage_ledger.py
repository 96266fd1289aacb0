"""What members say of a model for people to see: its ref, its size, their pulls, where their bytes came from.

Nothing is decided by these figures: a member that lies about them misleads a screen, no more.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2pcache.core.membership.settings import MAX_FIGURES
from p2pcache.core.protocol.messages import SwarmState
from p2pcache.ids import NodeId, Ref, is_spelling_of, spelled

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
        return _grown(self.before, taken)

    def rate(self, taken: Taken, now: float) -> float:
        """Bytes a second that came from elsewhere, on average since it began."""
        peers, origin, _ = self.brought(taken)
        return (peers + origin) / max(1.0, now - self.since)


class UsageLedger:
    """Bytes that one model's members took, by source, since the first of them came.

    Members tell totals since their start; the ledger adds up what they grew by. A total that shrank
    is that of a new process.
    """

    def __init__(self) -> None:
        """No member said anything."""
        self.label = ""  # the ref that a member used last
        self.total_bytes = 0
        self.peers = 0
        self.origin = 0
        self.local = 0
        self.moved_peers = self.moved_origin = 0  # of them: what came while its taker was here
        self._last: dict[NodeId, Taken] = {}

    @property
    def alpha(self) -> float | None:
        """Bytes read from the origin over the model's bytes; None while the size isn't known."""
        return self.origin / self.total_bytes if self.total_bytes else None

    def name_as_pushed(self, ref: Ref) -> str:
        """How a name of the model is written: `[namespace/]name`, with capitals if a member said it so."""
        name = spelled(self.label)
        return name if is_spelling_of(name, ref) else ref.full_name

    def on_figures(self, node: NodeId, said: SwarmState, *, known: bool = False) -> None:
        """A member said other figures than before; they were checked.

        Args:
            node: its id.
            said: what it says.
            known: it told figures before; else it may tell of what it took before this tracker started.
        """
        if said.label.lower() == self.label.lower():
            # Not all members know its capitals, which sort before small letters.
            self.label = min(said.label, self.label)
        else:
            self.label = said.label or self.label
        self.total_bytes = said.total_bytes or self.total_bytes
        if not any(said.taken):
            return
        now = said.taken[0], said.taken[1], said.taken[2]
        peers, origin, local = _grown(self.of(node), now)
        self.peers, self.origin, self.local = (
            self.peers + peers,
            self.origin + origin,
            self.local + local,
        )
        if known:
            self.moved_peers, self.moved_origin = (
                self.moved_peers + peers,
                self.moved_origin + origin,
            )
        if node not in self._last and len(self._last) >= MAX_FIGURES:
            self._last.pop(next(iter(self._last)))
        self._last[node] = now

    def of(self, node: NodeId) -> Taken:
        """Bytes that a member took from peers, from the origin and from its own cache."""
        return self._last.get(node, (0, 0, 0))


def _grown(before: Taken, now: Taken) -> Taken:
    """By how much totals grew; one that shrank is that of a new process."""
    peers, origin, local = (b - a if b >= a else b for a, b in zip(before, now, strict=True))
    return peers, origin, local

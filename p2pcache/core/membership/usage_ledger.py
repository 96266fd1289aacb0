"""What members say of a model for people to see: its ref, its size, their pulls, where their bytes came from.

Nothing is decided by these figures: a member that lies about them misleads a screen, no more.
"""

from enum import StrEnum
from typing import NamedTuple

from p2pcache.core.membership.settings import MOST_NODES
from p2pcache.core.protocol.messages import EndedPull, SwarmState
from p2pcache.ids import NodeId, Ref, is_spelling_of, spelled


class Taken(NamedTuple):
    """Bytes that were taken of a model: from peers, from the origin, from the taker's own cache."""

    peers: int = 0
    origin: int = 0
    local: int = 0

    def since(self, before: "Taken") -> "Taken":
        """By how much totals grew; one that shrank is that of a new process."""
        pairs = zip(self, before, strict=True)
        return Taken(*(now - was if now >= was else now for now, was in pairs))

    def with_more(self, more: "Taken") -> "Taken":
        """Both together."""
        return Taken(*map(sum, zip(self, more, strict=True)))


class PullEnd(StrEnum):
    """How a pull ended."""

    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"  # somebody ended it, or all who waited for it left: no failure
    LEFT = "left"  # its node said goodbye
    LOST = "lost"  # its node fell silent


class RunningPull(NamedTuple):
    """A member fetches all of a model."""

    since: float  # when the tracker heard of it, seconds
    before: Taken  # what the member had taken by then

    def rate(self, taken: Taken, now: float) -> float:
        """Bytes a second that came from elsewhere, on average since it began."""
        brought = taken.since(self.before)
        return (brought.peers + brought.origin) / max(1.0, now - self.since)


class UsageLedger:
    """Bytes that one model's members took, by source: the sum of what each one's totals grew by."""

    def __init__(self, digest: str) -> None:
        self.pulls: dict[NodeId, RunningPull] = {}
        self.label = ""  # the ref that a member used last
        self.total_bytes = 0
        self.taken = Taken()
        self.moved = Taken()  # of that: what came since its taker told its first figures
        self._digest = digest
        self._last: dict[NodeId, Taken] = {}  # also of members that left, and may come back
        self._said: dict[NodeId, str] = {}  # the ref that each member told last

    @property
    def alpha(self) -> float | None:
        """Bytes read from the origin over the model's bytes; None while the size isn't known."""
        return self.taken.origin / self.total_bytes if self.total_bytes else None

    def name_as_pushed(self, ref: Ref) -> str:
        """How a name of the model is written: `[namespace/]name`, with capitals if a member said it so."""
        name = spelled(self.label)
        return name if is_spelling_of(name, ref) else ref.full_name

    def on_state(self, node: NodeId, said: SwarmState, now: float) -> None:
        """A member tells of itself."""
        label = said.label
        if label != self._said.get(node):
            self._said[node] = label
            # Not all members know its capitals, which sort before small letters.
            same = label.lower() == self.label.lower()
            self.label = min(label, self.label) if same else label or self.label
        self.total_bytes = said.total_bytes or self.total_bytes
        if len(said.taken) >= len(Taken._fields):
            self._add(node, Taken(*said.taken))
        if not said.pulled or said.complete:
            self.pulls.pop(node, None)
        elif node not in self.pulls:
            self.pulls[node] = RunningPull(now, self.taken_by(node))

    def on_left(self, node: NodeId, now: float) -> EndedPull | None:
        """A member is here no longer; returns its pull, if one ran."""
        pull = self.pulls.pop(node, None)
        self._said.pop(node, None)
        if pull is None:
            return None
        taken = self.taken_by(node).since(pull.before)
        return EndedPull(self._digest, self.label, 0, now - pull.since, self.total_bytes, taken)

    def taken_by(self, node: NodeId) -> Taken:
        """What a member took."""
        return self._last.get(node, Taken())

    def _add(self, node: NodeId, now: Taken) -> None:
        grown = now.since(self.taken_by(node))
        self.taken = self.taken.with_more(grown)
        if node in self._last:
            self.moved = self.moved.with_more(grown)
        elif len(self._last) >= MOST_NODES:
            self._last.pop(next(iter(self._last)))
        self._last[node] = now

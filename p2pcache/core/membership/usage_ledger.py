"""What members say of a model for people to see: its ref, its size, where their bytes came from.

Nothing is decided by these figures: a member that lies about them misleads a screen, no more.
"""

from p2pcache.core.membership.settings import MAX_FIGURES
from p2pcache.core.protocol.messages import SwarmState
from p2pcache.ids import NodeId


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
        self._last: dict[NodeId, tuple[int, int, int]] = {}

    @property
    def alpha(self) -> float | None:
        """Bytes read from the origin over the model's bytes; None while the size isn't known."""
        return self.origin / self.total_bytes if self.total_bytes else None

    def on_figures(self, node: NodeId, said: SwarmState, *, known: bool = False) -> None:
        """A member said other figures than before; they were checked.

        Args:
            node: its id.
            said: what it says.
            known: it told figures before; else it may tell of what it took before this tracker started.
        """
        self.label = said.label or self.label
        self.total_bytes = said.total_bytes or self.total_bytes
        if not any(said.taken):
            return
        before = self._last.get(node, (0, 0, 0))
        now = (said.taken[0], said.taken[1], said.taken[2])
        fresh = [b - a if b >= a else b for a, b in zip(before, now, strict=True)]
        self.peers, self.origin = self.peers + fresh[0], self.origin + fresh[1]
        self.local += fresh[2]
        if known:
            self.moved_peers, self.moved_origin = (
                self.moved_peers + fresh[0],
                self.moved_origin + fresh[1],
            )
        if node not in self._last and len(self._last) >= MAX_FIGURES:
            self._last.pop(next(iter(self._last)))
        self._last[node] = now

    def of(self, node: NodeId) -> tuple[int, int, int]:
        """Bytes that a member took from peers, from the origin and from its own cache."""
        return self._last.get(node, (0, 0, 0))

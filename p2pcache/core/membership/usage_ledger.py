"""What members say of a model for people to see: its ref, its size, where their bytes came from. Pure.

Nothing is decided by these figures: a member that lies about them misleads a screen, no more.
"""

from p2pcache.core.protocol.messages import SwarmState
from p2pcache.errors import RemoteProtocolError

MAX_LABEL = 290  # characters of the longest ref: 80/80:128
MAX_BYTES = 1 << 62
MAX_TOLD = 20_000  # nodes whose last figures are remembered, departed ones included


class UsageLedger:
    """Bytes that one model's members took, by source, since the first of them came.

    Members tell totals since their start; the ledger adds up what they grew by. A total that shrank
    is that of a new process.
    """

    def __init__(self) -> None:
        self.label = ""  # the ref that a member used last
        self.total_bytes = 0
        self.peers = 0
        self.origin = 0
        self.local = 0
        self._told: dict[int, tuple[int, int, int]] = {}

    @property
    def alpha(self) -> float | None:
        """Bytes read from the origin over the model's bytes; None while the size isn't known."""
        return self.origin / self.total_bytes if self.total_bytes else None

    def told(self, node: int, said: SwarmState) -> None:
        """Take in what a member said; `check` was called before."""
        self.label = said.label or self.label
        self.total_bytes = said.total_bytes or self.total_bytes
        if not any(said.taken):
            return
        before = self._told.get(node, (0, 0, 0))
        now = (said.taken[0], said.taken[1], said.taken[2])
        fresh = [b - a if b >= a else b for a, b in zip(before, now, strict=True)]
        self.peers, self.origin = self.peers + fresh[0], self.origin + fresh[1]
        self.local += fresh[2]
        if node not in self._told and len(self._told) >= MAX_TOLD:
            self._told.pop(next(iter(self._told)))
        self._told[node] = now

    def of(self, node: int) -> tuple[int, int, int]:
        """Bytes that a member took from peers, from the origin and from its own cache."""
        return self._told.get(node, (0, 0, 0))


def check(said: SwarmState) -> None:
    """Refuse figures that no honest member sends.

    Raises:
        RemoteProtocolError: out of range.
    """
    figures = (said.total_bytes, *said.taken)
    if len(said.label) > MAX_LABEL or len(said.taken) not in (0, 3):
        raise RemoteProtocolError("a swarm's label or figures are too long")
    if not said.label.isprintable():  # it is shown in terminals
        raise RemoteProtocolError("a swarm's label has characters that can't be printed")
    if any(not 0 <= figure <= MAX_BYTES for figure in figures):
        raise RemoteProtocolError(f"a number of bytes out of range: {max(figures, key=abs)}")

"""How far the root of a tree reads ahead of those that it hands runs to. Pure.

A tree carries what is new at the pace of its nodes' links. Where storage is quicker, a root would soon have its whole
stripe, and everybody would take runs for late that are on their way in order (decision 0037).
"""

from p2pcache.core import chunkset

MOST = 6  # runs that a root has read and handed to nobody: what it sends and what it reads come in gusts
PATIENCE_S = 4.0  # after the last read: then nobody asks for them, or a hop takes that long


class ReadAhead:
    """Runs that a root has read and not handed on yet.

    Invariant: a run is in `kept` from its read until it, or a later one, is first handed on: the oldest are asked for
    first, and what nobody asks for any more was had elsewhere.
    """

    def __init__(self) -> None:
        """Nothing is read."""
        self.kept = 0  # bits
        self._until = 0.0  # when it is read on whatever is kept

    def read(self, runs: int, now: float) -> None:
        """These runs (bits) were read for those below."""
        self.kept |= runs
        self._until = now + PATIENCE_S

    def handed_on(self, runs: int) -> None:
        """Somebody has got these from us."""
        self.kept &= ~chunkset.full(runs.bit_length())

    def may_read(self, now: float) -> bool:
        """Whether to read on; who has waited for long enough waits for what it has kept so far no more."""
        if self.until > now:
            return False
        if self.until:
            self.kept = 0
        return True

    @property
    def until(self) -> float:
        """When to read on, if nothing is handed on before; 0.0: at once."""
        return self._until if self.kept.bit_count() >= MOST else 0.0

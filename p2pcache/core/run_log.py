"""What happened to runs lately: a bounded log that answers "why?"."""

from collections import deque

from p2pcache.ids import NodeId, RunIndex

NOBODY = -1  # in the place of a node: the entry concerns none


class RunLog:
    """The last entries about all runs of one model."""

    __slots__ = ("_entries",)

    def __init__(self, length: int) -> None:
        """Nothing happened yet.

        Args:
            length: entries that are kept, at about 100 bytes each.
        """
        self._entries: deque[tuple[float, RunIndex, str, NodeId]] = deque(maxlen=length)

    def note(self, now: float, run: RunIndex, word: str, node: NodeId = NOBODY) -> None:
        """Something happened to a run.

        Args:
            now: seconds.
            run: its index.
            word: what happened.
            node: the node that was involved.
        """
        self._entries.append((now, run, word, node))

    def story(self, run: RunIndex) -> list[str]:
        """The entries about a run, oldest first, one line each."""
        return [
            f"{when:.3f} {word}" + (f" {node:016x}" if node >= 0 else "")
            for when, number, word, node in self._entries
            if number == run
        ]

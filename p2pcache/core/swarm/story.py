"""What a scheduler remembers of its own doings: counters, and a bounded log that answers "why?"."""

from collections import deque
from dataclasses import dataclass

from p2pcache.core.swarm.events import Outcome, Source

LINES = 4096  # over all runs of a model; about half a megabyte
WORDS = {outcome: outcome.name.lower() for outcome in Outcome}  # made once: a story says them often


@dataclass(slots=True)
class Counters:
    """What a swarm did on this node since the scheduler was made."""

    bytes_peers: int = 0  # proved and new
    bytes_origin: int = 0
    bytes_local: int = 0
    bytes_twice: int = 0  # proved, but already had by then
    requests: int = 0
    duplicates: int = 0
    fetches: int = 0
    busy: int = 0
    refused: int = 0
    stalled: int = 0
    mismatched: int = 0

    def took(self, source: Source, fresh: int, again: int) -> None:
        """So many bytes were proved, new ones and such that we had by then."""
        if source is Source.LOCAL:
            self.bytes_local += fresh
            return
        if source is Source.PEER:
            self.bytes_peers += fresh
        else:
            self.bytes_origin += fresh
        self.bytes_twice += again


class Diary:
    """Counters and the log of one swarm."""

    __slots__ = ("_lines", "counters")

    def __init__(self, lines: int = LINES) -> None:
        """Nothing happened yet.

        Args:
            lines: of the log that are kept.
        """
        self.counters = Counters()
        self._lines: deque[tuple[float, int, str, int]] = deque(maxlen=lines)

    def note(self, now: float, run: int, word: str, node: int = -1) -> None:
        """Something happened to a run; `node` is who was involved."""
        self._lines.append((now, run, word, node))

    def story(self, run: int) -> list[str]:
        """The log's lines about a run, oldest first."""
        return [
            f"{at:.3f} {word}" + (f" {node:016x}" if node >= 0 else "")
            for at, number, word, node in self._lines
            if number == run
        ]

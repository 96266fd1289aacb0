"""Where a load's bytes come from: the seam between the loader and a directory or a swarm.

A source knows files and which of their bytes are proved and readable; it never hands out others.
The loader reads by `Source.read`, from several threads: a source whose bytes still move (an agent
that died, a chunk that failed a later check) must be able to look again before a read counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Range(NamedTuple):
    """Bytes [start, end) of one file."""

    path: str
    start: int
    end: int


@dataclass(slots=True)
class SourceStats:
    """Where the bytes of this load came from, as far as the source knows when asked."""

    bytes_peers: int = 0
    bytes_origin: int = 0
    bytes_disk: int = 0  # lay on this node when the load began
    verified_chunks: int = 0  # proved with BLAKE3, by whoever wrote them here
    digest: str = ""  # the model's identity; a plain directory has none
    notes: list[str] = field(default_factory=list)  # such as "agent lost, went on by itself"


class Source(Protocol):
    """One model for one load. All methods may be called from any thread until `close`.

    Errors are of our own tree; an error of `wait` or `read` ends the load.
    """

    @property
    def name(self) -> str:
        """What messages call it: the ref or the directory."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every byte is available now; once true it stays true."""
        ...

    def files(self) -> list[tuple[str, int]]:
        """(relative path with '/', size in bytes) of each file, also of those that still arrive."""
        ...

    def available(self, path: str, start: int, end: int) -> bool:
        """Whether all bytes of [start, end) are proved and readable. Cheap: asked in loops."""
        ...

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """Fill the buffers, one after the other, with the available bytes from `start` on, proved ones only.

        It waits and reads again where the bytes were withdrawn meanwhile, and finds them where an agent that
        died has left them.

        Raises:
            IntegrityError: the file is shorter than it was, or another one.
            P2PCacheError: they can't be had any more.
        """
        ...

    def want(self, ranges: Sequence[Range]) -> None:
        """Called once the headers are read: all that this load will need, in its order.

        With `fetch="needed"` nothing else is fetched.
        """
        ...

    def demand(self, path: str, start: int, end: int) -> None:
        """Somebody waits for these bytes now: let them come first. Returns at once."""
        ...

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """Block until at least one of the ranges is available, raising demand for the first ones.

        Args:
            ranges: what could be read next, the most welcome first.
            timeout_s: how long to block at most.

        Returns:
            Indices of the ranges that are available; [] when the time is up.

        Raises:
            P2PCacheError: these bytes will not come.
        """
        ...

    def stop(self) -> None:
        """The load is over: a `read` or `wait` that blocks ends with an error. Before `close`, at any time."""
        ...

    def stats(self) -> SourceStats:
        """Bytes by their origin; may be asked at any time, also after `close`."""
        ...

    def close(self) -> None:
        """Let go of descriptors and of the interest in the model. More than once does no harm."""
        ...

"""Where a load's bytes come from: the contract between the loader and a directory or an agent.

A source knows files, and which of their bytes are proved and readable. It hands out no others. The
loader reads by `Source.read`, from several threads, never from files by itself: bytes can be
withdrawn during a read (a chunk failed a later check), and then the source reads again.
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
    """Where the bytes of a load came from, as far as the source knows when it is asked."""

    bytes_peers: int = 0
    bytes_origin: int = 0
    bytes_disk: int = 0  # lay on this node when the load began
    verified_chunks: int = 0  # proved with BLAKE3, by the agent or by this process
    digest: str = ""  # the model's identity (hex); "" for a plain directory
    notes: list[str] = field(default_factory=list)  # "attached again to an agent ..."


class Source(Protocol):
    """One model for one load. All methods may be called from any thread until `close`.

    Errors are those of `p2pcache.errors`. An error of `wait` or `read` ends the load.
    """

    @property
    def name(self) -> str:
        """The ref or the directory, for messages."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every byte is available. Once true it stays true."""
        ...

    def files(self) -> list[tuple[str, int]]:
        """(relative path with '/', size in bytes) of each file of the model, available or not."""
        ...

    def available(self, path: str, start: int, end: int) -> bool:
        """Whether all bytes of [start, end) are proved and readable. Cheap: it is called in loops."""
        ...

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """Fill the buffers, one after the other, with proved bytes.

        Bytes that are withdrawn during the read are waited for and read again.

        Args:
            path: the file.
            start: byte offset of the first byte.
            into: the buffers; the bytes for them must be available.

        Raises:
            IntegrityError: the file is shorter than it was, or another one.
            P2PCacheError: the bytes can't be had any more, or the load was stopped.
        """
        ...

    def on_planned(self, ranges: Sequence[Range]) -> None:
        """Learn which ranges the load will read, in its order; called once, after the headers are read.

        With `fetch="needed"` the agent fetches nothing else.
        """
        ...

    def demand(self, path: str, start: int, end: int) -> None:
        """Let these bytes come first, since the caller waits for them. Returns at once."""
        ...

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """Block until at least one of the ranges is available, and demand the first ones meanwhile.

        Args:
            ranges: what could be read next, the most urgent first.
            timeout_s: how long to block at most.

        Returns:
            Indices of the ranges that are available; [] when the time is up.

        Raises:
            P2PCacheError: these bytes will not come.
        """
        ...

    def stop(self) -> None:
        """End the load: a `read` or `wait` that blocks ends with an error. May be called at any time."""
        ...

    def stats(self) -> SourceStats:
        """Figures so far; may be called at any time, also after `close`."""
        ...

    def close(self) -> None:
        """Close descriptors and detach from the agent. More than once does no harm."""
        ...

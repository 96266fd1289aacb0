"""What the data plane needs from the rooms around it, as protocols."""

from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome


class ChunkSource(Protocol):
    """Where a proved chunk's bytes are, for `os.sendfile`."""

    @property
    def fd(self) -> int:
        """Open for reading."""
        ...

    @property
    def offset(self) -> int:
        """Of the chunk's first byte in the file."""
        ...

    @property
    def length(self) -> int:
        """Bytes."""
        ...


class ChunkWriter(Protocol):
    """One incoming copy of one chunk. Calls come from any thread, one at a time."""

    def update(self, data: memoryview) -> None:
        """Hash, in stream order."""

    def put(self, offset: int, data: memoryview) -> None:
        """Write at `offset` within the chunk."""

    def finish(self) -> bool:
        """All is updated and put: True if the chunk is proved, False if the bytes are wrong."""
        ...

    def abort(self) -> None:
        """No more will come; puts that are still under way do nothing."""


class ChunkStore(Protocol):
    """The chunks of one model; calls come from any thread."""

    def missing_chunks(self, run: int) -> list[int]:
        """Chunks of the run that are not proved, ascending."""
        ...

    def source(self, chunk: int) -> ChunkSource:
        """Where a proved chunk lies. Raises NotFound."""
        ...

    def unreadable(self, chunk: int) -> bool:
        """The disk failed to read a proved chunk: don't offer it; whether that is news."""
        ...

    def begin(self, chunk: int) -> ChunkWriter | None:
        """A writer, or None: proved already."""
        ...


class SwarmPort(Protocol):
    """One model's swarm on this node: what the data plane asks and tells (on the loop's thread)."""

    @property
    def layout(self) -> Layout:
        """Index tables of the manifest."""
        ...

    @property
    def store(self) -> ChunkStore:
        """Where its chunks are."""
        ...

    def have_runs(self) -> int:
        """Bits of proved runs."""
        ...

    def wants(self) -> bool:
        """Whether anything is missing."""
        ...

    def pace_s(self) -> float:
        """Seconds from one new run to the next in this swarm; 0: not known."""
        ...

    def peer_joined(self, node: int, have: int, load: int) -> None:
        """We may request from this node."""

    def peer_left(self, node: int) -> None:
        """We may request from it no longer: the connection on which we did is gone."""

    def peer_has(self, node: int, runs: int, load: int) -> None:
        """A node proved more runs (also of one that only requests from us)."""

    def request_ended(
        self, request: int, outcome: Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        """The one end of a request; `nbytes` of payload came for it, the answer after `waited_s` (0: not known)."""

    def dial_failed(self, node: int) -> None:
        """The bad end of a dial."""

    def inbound(self, node: int, address: str, wants: bool, have: int) -> None:  # noqa: FBT001
        """Somebody joined us, and may be dialled back at `address` ("" if not)."""

"""Protocols of the parts that the data plane uses: stores of chunks, and swarms."""

from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.ids import NodeId, RunIndex, RunSet


class ChunkSource(Protocol):
    """The place of a proved chunk's bytes, for `os.sendfile`."""

    @property
    def fd(self) -> int:
        """Open for reading."""
        ...

    @property
    def offset(self) -> int:
        """Position of the chunk's first byte in the file."""
        ...

    @property
    def length(self) -> int:
        """Bytes."""
        ...


class ChunkWriter(Protocol):
    """One incoming copy of one chunk. Calls come from any thread, one at a time."""

    def update(self, data: memoryview) -> None:
        """Hash the next bytes of the stream."""

    def put(self, offset: int, data: memoryview) -> None:
        """Write at `offset` within the chunk."""

    def finish(self) -> bool:
        """End a stream that is complete: True if the chunk is proved, False if its bytes are wrong."""
        ...

    def abort(self) -> None:
        """Give the stream up; puts that are still under way do nothing."""


class ChunkStore(Protocol):
    """The chunks of one model; calls come from any thread."""

    def missing_chunks(self, run: RunIndex) -> list[int]:
        """Chunks of the run that are not proved, ascending."""
        ...

    def source(self, chunk: int) -> ChunkSource:
        """The place of a proved chunk.

        Raises:
            NotFound: the chunk isn't proved (any more).
        """
        ...

    def unreadable(self, chunk: int) -> bool:
        """Believe nothing of a chunk's file, which the disk failed to read; False: nothing was believed already."""
        ...

    def begin(self, chunk: int) -> ChunkWriter | None:
        """A writer for a chunk; None if it is proved already."""
        ...


class SwarmPort(Protocol):
    """One model's swarm on this node, as the data plane sees it. Called on the loop's thread."""

    @property
    def layout(self) -> Layout:
        """Index tables of the manifest."""
        ...

    @property
    def store(self) -> ChunkStore:
        """The store of its chunks."""
        ...

    def have_runs(self) -> RunSet:
        """The proved runs."""
        ...

    def wants(self) -> bool:
        """Whether this node lacks some of the model."""
        ...

    def awaited(self) -> tuple[int, float]:
        """How many runs this node waits for now, and seconds from one run to the next; 0: not known."""
        ...

    def peer_joined(self, node: NodeId, have: RunSet, load: int) -> None:
        """A node lets us request from it.

        Args:
            node: the node.
            have: runs that it has.
            load: its uploads, active and waiting.
        """

    def peer_left(self, node: NodeId) -> None:
        """We may request from a node no longer: that connection is gone."""

    def peer_has(self, node: NodeId, runs: RunSet, load: int) -> None:
        """A node announced more runs; it may be one that only requests from us."""

    def request_ended(
        self, request: int, outcome: Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        """The one end of a request.

        Args:
            request: the scheduler's number.
            outcome: how it ended.
            nbytes: payload that came for it.
            waited_s: time until its answer began; 0: not known.
        """

    def on_proved(self, runs: RunSet, source: Source, nbytes: int | None = None) -> None:
        """Bytes were proved though no request was under way for them any more.

        Args:
            runs: that are whole now.
            source: of the bytes.
            nbytes: that came; None: all of the runs.
        """

    def dial_failed(self, node: NodeId) -> None:
        """A dial failed, or the node doesn't serve the model."""

    def inbound(self, node: NodeId, address: str, wants: bool) -> None:  # noqa: FBT001
        """A node joined the model here; `PeerNet.heard` knows what it has.

        Args:
            node: the node.
            address: where it may be dialled back; "": nowhere.
            wants: it lacks some of the model.
        """

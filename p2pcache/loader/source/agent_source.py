"""A model that the node's agent is still fetching, as a source.

The attachment wakes this source and carries its demands to the agent; `ArrivingFiles` knows which
bytes are readable. Each read is checked: bytes that were withdrawn during the read are waited for
and read again.

When the agent is lost, what it has proved stays readable. If it doesn't come back within
`attachment.REATTACH_S`, the rest is read from the origin and proved here (`origin_fallback`). A load
that has begun is never begun again.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from p2pcache.errors import NotFound, P2PCacheError, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient
from p2pcache.io.models.arriving_dir import Board
from p2pcache.loader.source.arriving_files import ArrivingFiles
from p2pcache.loader.source.attachment import Attachment, Json, what_happened
from p2pcache.loader.source.base import Range, SourceStats
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.demand import DemandPolicy
from p2pcache.loader.source.origin_fallback import OriginFallback

log = logging.getLogger(__name__)

POLL_S = 0.05  # pause between two looks at the map of proved runs, if no event comes
_WAIT_S = 1.0  # of one wait for the agent's first answer


class AgentSource:
    """Implements `Source` over an attached load. Use `AgentSource.attach`."""

    def __init__(
        self,
        ref: Ref,
        models_dir: Path | None,
        origin: str,
        needed: bool,  # noqa: FBT001
    ) -> None:
        """Use `attach`."""
        self.name = str(ref)
        self._models_dir = models_dir
        self._origin = origin
        self._needed = needed
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._files = ArrivingFiles(self.name)
        self._error: P2PCacheError | None = None
        self._planned: list[Range] = []
        self._demands = DemandPolicy(self._files.runs_of, self._files.has_run)
        self._progress: Json = {}  # the agent's last event with figures
        self._local_bytes = 0  # on this node when the load began
        self._notes: list[str] = []
        self._stopped = False
        self._closed = False
        self._final_stats: SourceStats | None = None
        self._attachment: Attachment | None = None

    @classmethod
    def attach(
        cls,
        client: AgentClient,
        ref: Ref,
        *,
        needed: bool,
        models_dir: Path | None = None,
        origin: str = "",
        deadline: Deadline | None = None,
    ) -> "AgentSource":
        """Attach to the agent and wait until it has said what the model is.

        Args:
            client: of the agent.
            ref: the model.
            needed: fetch only what this load needs.
            models_dir: where this process sees the agent's models directory; None: where the agent does.
            origin: URL of the storage that replaces a lost agent; "": there is none.
            deadline: the caller's; None: none.

        Raises:
            TimedOut: the agent has said nothing in time.
            NotFound: no such model; or its directory isn't visible here.
            Unreachable, P2PCacheError: the agent's own error.
        """
        source = cls(ref, models_dir, origin, needed)
        source._attachment = Attachment(
            client, ref, needed=needed, has_origin=bool(origin),
            on_event=source._on_event, on_lost=source._on_lost,
        )  # fmt: skip
        source._attachment.start()
        try:
            source._await_resolved(deadline or Deadline(None, str(ref)))
        except BaseException:
            source.close()
            raise
        return source

    def _await_resolved(self, deadline: Deadline) -> None:
        with self._changed:
            while self._files.board is None and self._files.tree is None:
                if self._error is not None:
                    raise self._error
                deadline.check()
                self._changed.wait(deadline.slice_s(_WAIT_S))

    @property
    def digest(self) -> str:
        """The model's identity (hex)."""
        return self._attachment.digest if self._attachment is not None else ""

    @property
    def tree(self) -> Path | None:
        """The published model's directory; None while the model is incomplete."""
        return self._files.tree

    @property
    def complete(self) -> bool:
        """See `Source.complete`."""
        return self._files.complete

    # -- events of the attachment, on its threads ------------------------------------------------

    def _on_event(self, event: Json) -> None:
        kind = event["event"]
        if self._closed:
            return
        if kind == "resolved":
            self._on_resolved(event)
        elif kind in ("ready", "progress", "done"):
            self._progress = event
            if "peers" in event:
                self._demands.neighbours = event["peers"]
        if kind == "done":
            self._files.tree = self._below_models_dir(event, "path")
        with self._changed:
            if kind == "done":
                self._files.complete = True
            self._changed.notify_all()

    def _on_resolved(self, event: Json) -> None:
        folder = self._below_models_dir(event, "arriving")
        try:
            board = Board(folder, str(event.get("digest")))
        except NotFound:
            raise not_visible(folder) from None
        with self._changed:
            if self._closed:
                board.close()
                return
            if self._files.board is not None:
                self._notes.append("attached again to an agent that was lost")
                self._demands.on_reattached()
            else:
                self._local_bytes = int(event.get("bytes_had", 0))
            self._files.use_board(board)
        if self._planned:
            self._files.open_ahead(self._planned)

    def _below_models_dir(self, event: Json, key: str) -> Path:
        base = self._models_dir or Path(str(event.get("models_dir", "")))
        relative = Path(str(event.get(key, "")))
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise P2PCacheError(f"the agent named a strange path: {str(relative)!r}")
        return base / relative

    def _on_lost(self, error: P2PCacheError) -> None:
        fallback = None
        if isinstance(error, Unreachable) and self._files.board is not None:
            try:
                if not self._origin:
                    raise Unreachable(
                        f"{error}; set P2PCACHE_ORIGIN to go on from the storage in such a case"
                    )
                fallback = OriginFallback(self._files.layout, self._origin)
                reason = what_happened(error)
                log.warning("%s: %s; the rest comes from %s", self.name, reason, self._origin)
            except P2PCacheError as failed:
                error = failed
        with self._changed:
            if self._closed:
                if fallback is not None:
                    fallback.close()
                return
            if fallback is None:
                self._error = error
            else:
                self._notes.append("the agent was lost; the rest came from the origin")
                self._files.fallback = fallback
                fallback.request_runs(self._files.missing(self._planned))
            self._changed.notify_all()

    # -- Source ----------------------------------------------------------------------------------

    def files(self) -> list[tuple[str, int]]:
        """See `Source.files`."""
        return [(file.path, file.size) for file in self._files.layout.manifest.files]

    def available(self, path: str, start: int, end: int) -> bool:
        """See `Source.available`."""
        return self._files.available(Range(path, start, end))

    def on_planned(self, ranges: Sequence[Range]) -> None:
        """See `Source.on_planned`."""
        self._planned = list(ranges)
        self._demands.reads_weights = True
        self._files.open_ahead(ranges)
        missing = self._files.missing(ranges)
        if self._needed and missing and self._attachment is not None:
            self._attachment.demand(missing, urgent=False)
        if self._files.fallback is not None:
            self._files.fallback.request_runs(missing)

    def demand(self, path: str, start: int, end: int) -> None:
        """See `Source.demand`."""
        self._demand([Range(path, start, end)])

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """See `Source.wait`."""
        ends = time.monotonic() + timeout_s
        patient_until = time.monotonic() + self._demands.patience_s(ranges)
        while True:
            found = [i for i, wanted in enumerate(ranges) if self.available(*wanted)]
            now = time.monotonic()
            if found or now >= ends:
                return found
            self._raise_error()
            if now >= patient_until:
                self._demand(self._demands.to_demand(ranges))
            with self._changed:
                self._changed.wait(min(POLL_S, ends - now))

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """See `Source.read`."""
        wanted = Range(path, start, start + sum(len(view) for view in into))
        while not self._files.read_files(wanted, into):
            self.wait([wanted], POLL_S * 4)

    def stop(self) -> None:
        """See `Source.stop`: a blocked thread sees it within `POLL_S`."""
        self._stopped = True

    def stats(self) -> SourceStats:
        """See `Source.stats`."""
        if self._final_stats is not None:
            return self._final_stats
        progress, fallback = self._progress, self._files.fallback
        stats = SourceStats(
            bytes_peers=int(progress.get("bytes_peers", 0)),
            bytes_origin=int(progress.get("bytes_origin", 0))
            + (fallback.bytes_origin if fallback else 0),
            bytes_disk=self._local_bytes,
            notes=list(self._notes),
        )
        if self._files.board is not None:
            stats.digest = self._files.layout.digest
            stats.verified_chunks = self._files.verified_chunks()
        return stats

    def close(self) -> None:
        """See `Source.close`."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, one of which may hold the lock
        final = self.stats()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._final_stats = final
            self._files.close()
        if self._attachment is not None:
            self._attachment.close()

    def _demand(self, ranges: Sequence[Range]) -> None:
        runs = self._files.missing(ranges)
        if self._files.fallback is not None:
            self._files.fallback.request_runs(runs)
        elif (fresh := self._demands.mark_demanded(runs)) and self._attachment is not None:
            self._attachment.demand(fresh, urgent=True)

    def _raise_error(self) -> None:
        if self._stopped:
            raise P2PCacheError(f"{self.name}: the load was closed")
        fallback = self._files.fallback
        error = self._error or (fallback.error if fallback is not None else None)
        if error is not None:
            raise error


def not_visible(path: Path) -> NotFound:
    """The error of a process that doesn't see what the agent named."""
    return NotFound(
        f"{path} isn't visible here: mount the whole of the agent's models directory, and set "
        "P2PCACHE_MODELS_DIR to where it is"
    )

"""The history of this node: counts for metrics, rows for `p2pcache history`."""

import contextlib
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator

import msgspec

from p2pcache.core.protocol.messages import MAX_ENDED, EndedPull
from p2pcache.errors import NotFound, P2PCacheError, UsageError
from p2pcache.io import pools
from p2pcache.io.disk.agent_db import HistoryRow
from p2pcache.io.models.store import Store
from p2pcache.io.tasks import Tasks

log = logging.getLogger(__name__)

# From a small model on a fast link to a large one over 1 GbE.
BUCKETS_S = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_MESSAGE_CHARS = 300
CALLERS_FAULT = (
    UsageError.exit_code,
    NotFound.exit_code,
)  # what was asked for may be no model's name
MAX_WAITING = 1000  # rows that aren't on disk yet: a full disk must not fill the memory, too


class Durations:
    """How long completed pulls took, as a histogram."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)  # not cumulative; the last one is for longer pulls
        self.sum_s = 0.0

    def count(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs (upper bound, pulls that took no longer), in Prometheus' form."""
        bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
        return [(bound, sum(self.counts[: n + 1])) for n, bound in enumerate(bounds)]


class _Waiting:
    """Rows that aren't on disk yet, the oldest first; of too many the latest. The lock is never held over disk work."""

    def __init__(self) -> None:
        self.rows: deque[HistoryRow] = deque(maxlen=MAX_WAITING)
        self._changing = threading.Lock()

    def enqueue(self, row: HistoryRow) -> None:
        """Queue a row; a failure that repeats the last one is counted there, as on disk."""
        with self._changing:
            one = row.with_earlier(self.rows[-1]) if self.rows else None
            if one is not None:
                self.rows[-1] = one
            else:
                self.rows.append(row)

    def take_oldest(self) -> HistoryRow | None:
        """The oldest row, which is to be written now."""
        with self._changing:
            return self.rows.popleft() if self.rows else None

    def put_back(self, row: HistoryRow) -> None:
        """The oldest row couldn't be written."""
        with self._changing:
            one = self.rows[0].with_earlier(row) if self.rows else None
            if one is not None:
                self.rows[0] = one
            elif len(self.rows) < MAX_WAITING:
                self.rows.appendleft(row)

    def copied(self) -> list[HistoryRow]:
        """All of them at this moment."""
        with self._changing:
            return list(self.rows)


class Journal:
    """Counts pulls, pushes and removals that ended, and writes rows of them on another thread.

    `record` is called on the loop's thread and doesn't wait for the disk; rows keep their order.
    """

    def __init__(self, store: Store, tasks: Tasks) -> None:
        self.ended: Counter[tuple[str, int]] = Counter()  # by (action, exit code)
        self.hits = 0  # pulls of models that were complete here already
        self.pull_bytes = 0  # of the models whose pulls completed
        self.durations = Durations()
        self._untold: deque[EndedPull] = deque(maxlen=MAX_ENDED)  # the tracker hasn't heard of them
        self._store = store
        self._tasks = tasks
        self._waiting = _Waiting()
        # `close` may write while a thread does. Under it no row is on its way from the queue to the disk.
        self._writing = threading.Lock()

    def record(
        self,
        action: str,
        *,
        ref: str = "",
        digest: str = "",
        size_bytes: int = 0,
        seconds: float = 0.0,
        sources: dict[str, int] | None = None,
        error: P2PCacheError | None = None,
        report: dict[str, object] | None = None,
    ) -> None:
        """Count something that ended, and queue its row.

        Args:
            action: pull, warm, push, rm or prune.
            ref: of the model.
            digest: of its manifest, if known.
            size_bytes: of the model; for rm and prune the bytes that were freed.
            seconds: its duration.
            sources: `bytes_origin`, `bytes_peers`, `bytes_local`, for pulls.
            error: why it failed; None: it didn't.
            report: of a pull, says where its time went.
        """
        code = error.exit_code if error is not None else 0
        self.ended[action, code] += 1
        if action == "pull" and not code:
            self.durations.count(seconds)
            self.pull_bytes += size_bytes
        if action in ("pull", "warm") and code not in CALLERS_FAULT:
            known, by = ref.partition("@")[0] if digest else "", sources or {}
            taken = by.get("bytes_peers", 0), by.get("bytes_origin", 0), by.get("bytes_local", 0)
            self._untold.append(
                EndedPull(digest, known, code, round(seconds, 3), size_bytes, taken)
            )
        message = str(error)[:MAX_MESSAGE_CHARS] if error is not None else ""
        self._waiting.enqueue(HistoryRow(
            time.time(), action, ref, digest, size_bytes, round(seconds, 3),
            **(sources or {}), code=code, message=message,
            report=msgspec.json.encode(report).decode() if report else "",
        ))  # fmt: skip
        with contextlib.suppress(RuntimeError):  # the daemon stops: `close` writes the row
            work = pools.STEPS.run(self._write)
            self._tasks.spawn_contained(work, name="journal")

    def take_untold(self) -> tuple[EndedPull, ...]:
        """The pulls that ended since the last call, for the tracker; of many the latest."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold

    @contextlib.contextmanager
    def failures(self, action: str, ref: str) -> Iterator[None]:
        """Record an error of the block. The block itself records its success."""
        began = time.monotonic()
        try:
            yield
        except P2PCacheError as error:
            self.record(action, ref=ref, seconds=time.monotonic() - began, error=error)
            raise

    async def rows(self, limit: int) -> list[HistoryRow]:
        """Up to `limit` rows, the newest first, also of former times, and those that a full disk lets wait."""

        def read() -> list[HistoryRow]:
            with self._writing:
                self._write_waiting()
                waiting, on_disk = self._waiting.copied(), self._store.history(limit)
            one = waiting[0].with_earlier(on_disk[0]) if waiting and on_disk else None
            if one is not None:
                waiting[0] = one
                del on_disk[0]
            return [*reversed(waiting), *on_disk][:limit]

        return await pools.STEPS.run(read)

    def close(self) -> None:
        """Write the rows that are left, before the store closes. It blocks."""
        self._write()

    def _write(self) -> None:
        with self._writing:
            self._write_waiting()

    def _write_waiting(self) -> None:
        while (row := self._waiting.take_oldest()) is not None:
            try:
                self._store.add_history(row)
            except P2PCacheError as error:  # the next call tries again
                self._waiting.put_back(row)
                log.warning("the history can't be written: %s", error)
                return

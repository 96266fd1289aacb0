"""One load at work: a feeder thread chooses batches whose bytes are available, reader threads read them.

The feeder takes batches in completion order inside an in-order window, so that early layers come
first and a late chunk holds up nothing else. Readers spend their time in `preadv`, without Python's
lock. Tensors are made in the consumer's thread.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.loader.collector import no_collections
from p2pcache.loader.memory.backend import Backend
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import READ_BYTES, Batch, Read
from p2pcache.loader.report import Waits
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.transfer.reading import read_host, read_staged
from p2pcache.loader.transfer.sinks import Sink, Target

WINDOW_BATCHES = 64  # the swarm fetches within 32 runs above its first gap; a batch is about one
WAIT_RANGES = 64  # in one call of `Source.wait`
_WAIT_S = 0.5  # of one wait; it may hold up a close


@dataclass(slots=True)
class _BatchInFlight:
    """A batch that is being read."""

    batch: Batch
    target: Target
    reads_left: int


@dataclass(frozen=True, slots=True)
class Staging:
    """The device of a load, and the ring on the way to it."""

    backend: Backend
    ring: Ring


class Pipeline:
    """Batches in, tensors out. Call `next` until it returns None, and `close` in any case."""

    def __init__(
        self,
        source: Source,
        batches: Sequence[Batch],
        sink: Sink,
        deadline: Deadline,
        *,
        threads: int,
        read_bytes: int = READ_BYTES,
        staging: Staging | None = None,
    ) -> None:
        """Start the threads.

        Args:
            source: where bytes come from.
            batches: what to load, the most urgent first.
            sink: where bytes go.
            deadline: the caller's.
            threads: number of readers; two copy a warm page cache at full speed.
            read_bytes: size of one read at most; ring slots are larger by the padding.
            staging: for sinks whose targets lie on a device; None for others.
        """
        self.waits = Waits()
        self.on_wait: Callable[[int], None] = lambda _: None
        """Called with `bytes_delivered` in the consumer's thread, now and then while it waits."""
        self.bytes_read = 0
        self.bytes_delivered = 0
        self._source = source
        self._sink = sink
        self._deadline = deadline
        self._read_bytes = read_bytes
        self._staging = staging
        self._undelivered = len(batches)
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[_BatchInFlight, Read] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_BatchInFlight | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run_reader, name=f"p2pcache-read-{i}", daemon=True)
            for i in range(threads)
        ]
        feeder = threading.Thread(
            target=self._run_feeder, args=(list(batches),), name="p2pcache-feed", daemon=True
        )
        self._threads.append(feeder)
        for thread in self._threads:
            thread.start()

    def next(self) -> list[tuple[str, Any]] | None:
        """Wait for the next batch that is read, and make its tensors.

        Returns:
            (name, tensor) of each item; None at the end.

        Raises:
            UsageError: this process is a fork of the one that loads; or the load was closed meanwhile.
            TimedOut: the caller's time is up.
            P2PCacheError: the first error of any of the load's threads; the load has ended.
        """
        if self._undelivered == 0 or self._stopped.is_set():
            return None
        if self._pid != os.getpid():
            raise UsageError("this load was begun before a fork and goes on there; load again here")
        self._sink.on_next_batch()
        began = time.monotonic()
        done = self._next_done()
        self.waits.consumer_s += time.monotonic() - began
        if isinstance(done, BaseException):
            # A failed device fails again in `close`; the consumer gets the first error.
            with suppress(P2PCacheError):
                self.close()
            raise done
        self._undelivered -= 1
        self.bytes_delivered += sum(item.nbytes for item in done.batch.items)
        return self._sink.make_tensors(done.batch, done.target)

    def _next_done(self) -> "_BatchInFlight | BaseException":
        while True:  # the feeder checks the deadline, too, but a read can block
            with suppress(queue.Empty):
                return self._done.get(timeout=self._deadline.slice_s(_WAIT_S))
            if self._stopped.is_set():
                raise UsageError(
                    f"{self._source.name}: the load was closed while it was waited for"
                )
            self.on_wait(self.bytes_delivered)
            self._deadline.check()

    def close(self) -> None:
        """Stop the threads and wait for running copies. More than once does no harm.

        Raises:
            P2PCacheError: the device failed; tensors on it aren't valid.
        """
        self._stopped.set()
        self._source.stop()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        try:
            # A forked child can't use the device.
            if self._staging is not None and os.getpid() == self._pid:
                self.waits.ring_s = self._staging.ring.waited_s
                self._staging.ring.close()
        finally:
            self._sink.close()

    def _enter_thread(self) -> None:
        if self._staging is not None:
            self._staging.backend.enter()

    def _run_feeder(self, pending: list[Batch]) -> None:
        try:
            self._enter_thread()
            missing: dict[int, list[Range]] = {}
            while pending and not self._stopped.is_set():
                batch = self._next_available(pending, missing)
                if batch is None or not self._start_batch(batch):
                    return
        except BaseException as error:  # noqa: BLE001  # it is raised in the consumer's thread
            self._done.put(error)

    def _next_available(
        self, pending: list[Batch], missing: dict[int, list[Range]]
    ) -> Batch | None:
        """Wait for a batch of the window whose bytes are all available; the first such batch is taken."""
        while not self._stopped.is_set():
            awaited: list[Range] = []
            for place, batch in enumerate(pending[:WINDOW_BATCHES]):
                left = missing.get(id(batch))
                left = [
                    r
                    for r in (batch.ranges() if left is None else left)
                    if not self._is_available(r)
                ]
                if not left:
                    missing.pop(id(batch), None)
                    return pending.pop(place)
                missing[id(batch)] = left
                awaited += left
            self._deadline.check()
            began = time.monotonic()
            self._source.wait(awaited[:WAIT_RANGES], self._deadline.slice_s(_WAIT_S))
            self.waits.source_s += time.monotonic() - began
        return None

    def _is_available(self, wanted: Range) -> bool:
        return self._source.complete or self._source.available(*wanted)

    def _start_batch(self, batch: Batch) -> bool:
        began = time.monotonic()
        target = self._sink.allocate(batch, self._stopped.is_set)
        self.waits.memory_s += time.monotonic() - began
        if target is None:
            return False
        with no_collections():
            reads = list(batch.reads(self._read_bytes, rows=bool(target.places)))
        in_flight = _BatchInFlight(batch, target, len(reads))
        if not reads:  # all its tensors are empty
            self._done.put(in_flight)
        for read in reads:
            self._jobs.put((in_flight, read))
        return True

    def _run_reader(self) -> None:
        try:
            self._enter_thread()
            while (job := self._jobs.get()) is not None and not self._stopped.is_set():
                self._read(*job)
        except BaseException as error:  # noqa: BLE001  # it is raised in the consumer's thread
            self._done.put(error)

    def _read(self, in_flight: _BatchInFlight, read: Read) -> None:
        began = time.monotonic()
        self._read_into(in_flight.target, read)
        seconds = time.monotonic() - began
        with self._lock:
            self.waits.reading_s += seconds
            self.bytes_read += read.nbytes
            in_flight.reads_left -= 1
            last = in_flight.reads_left == 0
        if last:
            if self._staging is not None:  # all reads of the batch have begun their copies
                in_flight.target.events = self._staging.backend.record_all()
            self._done.put(in_flight)

    def _read_into(self, target: Target, read: Read) -> None:
        if self._staging is None or not target.places:
            read_host(self._source, read, target.views)
        else:
            backend, ring = self._staging.backend, self._staging.ring
            read_staged(self._source, read, target, ring, backend, self._stopped.is_set)

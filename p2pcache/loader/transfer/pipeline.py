"""One load at work: a feeder chooses batches whose bytes are there, readers bring them.

The feeder takes batches in completion order inside an in-order window, so that early layers lead
and a late chunk holds up nobody else. Readers are threads in `preadv`, which leaves Python alone.
Tensors are made in the consumer's thread.
"""

import os
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.loader.memory.backend import Backend
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import READ_BYTES, Batch, Read
from p2pcache.loader.report import Waits
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.transfer.reading import read_host, read_staged
from p2pcache.loader.transfer.sinks import Sink, Target

WINDOW_BATCHES = 64  # the swarm fetches within 32 chunks above its first gap; a batch is about one
WAIT_RANGES = 64  # a source is asked for so many at a time
_WAIT_S = 0.5  # how long a wait for the source may hold up a close


@dataclass(slots=True)
class _Load:
    """A batch on its way."""

    batch: Batch
    target: Target
    left: int  # reads


@dataclass(frozen=True, slots=True)
class Staging:
    """How bytes reach a device."""

    backend: Backend
    ring: Ring


class Pipeline:
    """Batches in, tensors out. `next` until it gives None; `close` in any case."""

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
            batches: what to bring, the most welcome first.
            sink: where to.
            deadline: the caller's.
            threads: readers; two bring a warm page cache to memory at full speed.
            read_bytes: of one read at most; a ring's slots are larger by the padding.
            staging: needed by sinks whose targets lie on a device.
        """
        self.waits = Waits()
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
        self._jobs: queue.SimpleQueue[tuple[_Load, Read] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Load | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"p2pcache-read-{i}", daemon=True)
            for i in range(threads)
        ]
        feeder = threading.Thread(
            target=self._feed, args=(list(batches),), name="p2pcache-feed", daemon=True
        )
        self._threads.append(feeder)
        for thread in self._threads:
            thread.start()

    def next(self) -> list[tuple[str, Any]] | None:
        """The next batch's tensors; None at the end.

        Raises:
            UsageError: the process is a fork of the one that loads.
            P2PCacheError: what went wrong, wherever it did; nothing comes after it.
        """
        if self._undelivered == 0 or self._stopped.is_set():
            return None
        if self._pid != os.getpid():
            raise UsageError("this load was begun before a fork and goes on there; load again here")
        self._sink.turn()
        began = time.monotonic()
        done = self._next_done()
        self.waits.consumer_s += time.monotonic() - began
        if isinstance(done, BaseException):
            with suppress(
                P2PCacheError
            ):  # a device that failed fails again; the first error counts
                self.close()
            raise done
        self._undelivered -= 1
        self.bytes_delivered += sum(want.nbytes for want in done.batch.wants)
        return self._sink.finish(done.batch, done.target)

    def _next_done(self) -> "_Load | BaseException":
        while True:  # a read can block, too: the feeder's own look at the time isn't enough
            with suppress(queue.Empty):
                return self._done.get(timeout=self._deadline.slice_s(_WAIT_S))
            if self._stopped.is_set():
                raise UsageError(
                    f"{self._source.name}: the load was closed while it was waited for"
                )
            self._deadline.check()

    def close(self) -> None:
        """Stop the threads and wait for copies that run. More than once does no harm.

        Raises:
            P2PCacheError: the device failed; what it was given isn't there.
        """
        self._stopped.set()
        self._source.stop()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        try:
            if self._staging is not None and os.getpid() == self._pid:  # a fork has no device
                self.waits.ring_s = self._staging.ring.waited_s
                self._staging.ring.drain()
        finally:
            self._sink.close()

    def _enter(self) -> None:
        if self._staging is not None:
            self._staging.backend.enter()

    def _feed(self, pending: list[Batch]) -> None:
        try:
            self._enter()
            missing: dict[int, list[Range]] = {}
            while pending and not self._stopped.is_set():
                batch = self._choose(pending, missing)
                if batch is None or not self._start(batch):
                    return
        except BaseException as error:  # noqa: BLE001  # it is raised in the consumer's thread
            self._done.put(error)

    def _choose(self, pending: list[Batch], missing: dict[int, list[Range]]) -> Batch | None:
        """The first batch of the window whose bytes are all there; waits until there is one."""
        while not self._stopped.is_set():
            asked: list[Range] = []
            for place, batch in enumerate(pending[:WINDOW_BATCHES]):
                left = missing.get(id(batch))
                left = [r for r in (batch.ranges() if left is None else left) if not self._there(r)]
                if not left:
                    missing.pop(id(batch), None)
                    return pending.pop(place)
                missing[id(batch)] = left
                asked += left
            self._deadline.check()
            began = time.monotonic()
            self._source.wait(asked[:WAIT_RANGES], self._deadline.slice_s(_WAIT_S))
            self.waits.source_s += time.monotonic() - began
        return None

    def _there(self, wanted: Range) -> bool:
        return self._source.complete or self._source.available(*wanted)

    def _start(self, batch: Batch) -> bool:
        began = time.monotonic()
        target = self._sink.open(batch, self._stopped.is_set)
        self.waits.memory_s += time.monotonic() - began
        if target is None:
            return False
        reads = list(batch.reads(self._read_bytes))
        load = _Load(batch, target, len(reads))
        if not reads:  # only empty tensors
            self._done.put(load)
        for read in reads:
            self._jobs.put((load, read))
        return True

    def _work(self) -> None:
        try:
            self._enter()
            while (job := self._jobs.get()) is not None and not self._stopped.is_set():
                self._one(*job)
        except BaseException as error:  # noqa: BLE001  # it is raised in the consumer's thread
            self._done.put(error)

    def _one(self, load: _Load, read: Read) -> None:
        began = time.monotonic()
        self._bring(load.target, read)
        took = time.monotonic() - began
        with self._lock:
            self.waits.reading_s += took
            self.bytes_read += sum(part.length for part in read.parts)
            load.left -= 1
            last = load.left == 0
        if last:
            self._done.put(load)

    def _bring(self, target: Target, read: Read) -> None:
        if self._staging is None or not target.places:
            read_host(self._source, read, target.views)
        else:
            backend, ring = self._staging.backend, self._staging.ring
            read_staged(self._source, read, target, ring, backend, self._stopped.is_set)

"""A load in progress: how its parts are put together, and the iterator over its tensors."""

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import FRAMEWORKS, Framework, import_numpy
from p2pcache.loader.memory.backend import Backend, CudaBackend, known_device
from p2pcache.loader.memory.host_pool import Budget, HostPool
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import (
    ALIGN_BYTES,
    BATCH_BYTES,
    MAX_ITEMS,
    READ_BYTES,
    Batch,
    batches,
)
from p2pcache.loader.plan.placement import Placement
from p2pcache.loader.plan.selection import Want
from p2pcache.loader.report import LoadReport
from p2pcache.loader.session import Closing, Session
from p2pcache.loader.transfer.pipeline import Pipeline, Staging
from p2pcache.loader.transfer.sinks import DeviceSink, HostSink, IntoSink, Sink

HOST_READERS = 4  # consumers want cores, too
DEVICE_READERS = 8  # a thread brings some 6 GB/s out of the page cache; a bus takes 25 to 55
SPARE_SLOTS = 4  # that are copied from while each reader fills one
PADDING_BYTES = ALIGN_BYTES * MAX_ITEMS  # what alignment may add to a read in a ring slot
MIN_LIMIT_BYTES = 1 << 20  # below it nothing but waiting would happen


@dataclass(frozen=True, slots=True)
class Tuning:
    """Knobs that measurements turn; the defaults suit everybody else."""

    threads: int = 0  # readers; 0: as many as suit the machine
    read_bytes: int = READ_BYTES
    ring_slots: int = 0  # at most; 0: as many as suit the readers
    copy_streams: int = 1

    def readers(self, most: int) -> int:
        """How many threads; two fill a small machine's memory."""
        return self.threads or min(most, max(2, os.cpu_count() or 2))


class TensorStream(Closing):
    """Iterator of (name, tensor), in the order in which the bytes come. Close it, or use `with`."""

    def __init__(self, session: Session, pipeline: Pipeline, budget: Budget) -> None:
        """Made by `iter_tensors`.

        Args:
            session: its source is closed with the stream.
            pipeline: at work already.
            budget: what the memory limit bounds.
        """
        self.report = LoadReport(
            session.source.name, memory_limit_bytes=budget.limit_bytes, waits=pipeline.waits
        )
        self._source = session.source
        self._pipeline = pipeline
        self._budget = budget
        self._ready: deque[tuple[str, Any]] = deque()
        self._began = time.monotonic()
        self._closed = False
        self._turn = threading.Lock()  # of the threads that share the iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        with self._turn:
            return self._next()

    def _next(self) -> tuple[str, Any]:
        if not self._ready and not self._closed:
            try:
                found = self._pipeline.next()
            except BaseException:
                self.report.failed = True
                self.close()
                raise
            if found is None:
                self.close()
            else:
                self._ready.extend(found)
        if not self._ready:
            raise StopIteration
        self.report.tensors += 1
        return self._ready.popleft()

    def close(self) -> None:
        """Stop the load, if it isn't at its end, and log the line. More than once does no harm."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        try:
            self._pipeline.close()
        finally:
            self._source.close()
            self._tell()

    def _tell(self) -> None:
        report = self.report
        report.seconds = time.monotonic() - self._began
        report.bytes = self._pipeline.bytes_delivered
        report.bytes_read = self._pipeline.bytes_read
        report.memory_peak_bytes = self._budget.peak_bytes
        report.source = self._source.stats()
        report.log()


def start(
    session: Session,
    wants: Sequence[Want],
    *,
    device: str,
    framework: Framework,
    limit_bytes: int,
    owned: bool,
    tuning: Tuning,
) -> TensorStream:
    """Begin to bring new tensors to a device.

    Raises:
        UsageError: a framework or device that can't be.
    """
    device = check_framework(framework, device)
    plan = _within(limit_bytes, wants)
    if device == "cpu":
        pool = HostPool(limit_bytes, *_memory_of(plan))
        sink: Sink = HostSink(pool, framework, owned=owned)
        return _run(session, plan, sink, pool.budget, tuning, None)
    backend = CudaBackend(device, tuning.copy_streams)
    staging, tuning = stage(backend, limit_bytes, tuning)
    budget = Budget(limit_bytes)
    return _run(session, plan, DeviceSink(backend, budget), budget, tuning, staging)


def start_into(
    session: Session, placement: Placement, limit_bytes: int, tuning: Tuning
) -> TensorStream:
    """Begin to bring tensors into the caller's own."""
    kinds: list[list[Want]] = [[], [], []]
    for want in placement.wants:
        kinds[placement.kind(want.info.name)].append(want)
    converted = _within(limit_bytes, kinds[2])
    pool = HostPool(limit_bytes, *_memory_of(converted))
    backend, staging = None, None
    if placement.buffers:
        device = str(next(iter(placement.buffers.values())).device)
        backend = CudaBackend(device, tuning.copy_streams)
        for buffer in placement.buffers.values():
            backend.adopt(buffer)
        staging, tuning = stage(backend, limit_bytes, tuning)
    sink = IntoSink(placement, backend, HostSink(pool, placement.converted or "pt", owned=True))
    plan = [*batches(kinds[0]), *batches(kinds[1]), *converted]
    order = {want.info.name: i for i, want in enumerate(placement.wants)}
    plan.sort(key=lambda batch: order[batch.wants[0].info.name])
    return _run(session, plan, sink, pool.budget, tuning, staging)


def _within(limit_bytes: int, wants: Sequence[Want]) -> list[Batch]:
    """Small tensors travel together only while two batches, one taken and one read, fit the limit."""
    return batches(wants, min(BATCH_BYTES, limit_bytes // 2))


def _memory_of(plan: Sequence[Batch]) -> tuple[int, int]:
    """Bytes of all batches at once, each on pages of its own, and of the largest."""
    sizes = [-(-batch.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for batch in plan]
    return sum(sizes), max(sizes, default=0)


def stage(backend: Backend, limit_bytes: int, tuning: Tuning) -> tuple[Staging, Tuning]:
    """A ring below the memory limit, and reads that fit its slots."""
    threads = tuning.readers(DEVICE_READERS)
    slots = tuning.ring_slots or threads + SPARE_SLOTS
    slots = max(1, min(slots, limit_bytes // (2 * PADDING_BYTES)))
    most = max(2 * PADDING_BYTES, min(tuning.read_bytes, limit_bytes // slots))
    slot_bytes = 1 << most.bit_length() - 1  # torch pins a power of two, whatever it's asked for
    ring = Ring(backend, slots, slot_bytes)
    fitting = Tuning(threads, slot_bytes - PADDING_BYTES, slots, tuning.copy_streams)
    return Staging(backend, ring), fitting


def check_framework(framework: Framework, device: object) -> str:
    """Import what tensors will be made with, in the caller's thread.

    Returns:
        The device; "cpu" by whatever name it was called.

    Raises:
        UsageError: it's missing or doesn't go with the device.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"framework {framework!r}: expected one of {', '.join(FRAMEWORKS)}")
    word = f"cuda:{device}" if isinstance(device, int) else str(device)  # torch counts GPUs, too
    if framework == "pt":
        return "cpu" if known_device(word).type == "cpu" else word
    if word != "cpu":
        raise UsageError(f"framework {framework!r} has no device {word!r}; use 'pt' or 'cpu'")
    if framework == "np":
        import_numpy()
    return word


def _run(
    session: Session,
    plan: Sequence[Batch],
    sink: Sink,
    budget: Budget,
    tuning: Tuning,
    staging: Staging | None,
) -> TensorStream:
    session.source.want([r for batch in plan for r in batch.ranges()])
    pipeline = Pipeline(
        session.source,
        plan,
        sink,
        session.deadline,
        threads=tuning.readers(HOST_READERS),
        read_bytes=tuning.read_bytes,
        staging=staging,
    )
    return TensorStream(session, pipeline, budget)

"""A load in progress: its parts put together, and the iterator over its tensors."""

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import FRAMEWORKS, Framework, import_numpy
from p2pcache.loader.memory.backend import Backend, CudaBackend, known_device
from p2pcache.loader.memory.host_pool import Budget, HostPool
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import (
    ALIGN_BYTES,
    BATCH_BYTES,
    DEVICE_BATCH_BYTES,
    DEVICE_READ_BYTES,
    MAX_ITEMS,
    READ_BYTES,
    Batch,
    batches,
)
from p2pcache.loader.plan.placement import Placement, Transfer
from p2pcache.loader.plan.selection import LoadItem
from p2pcache.loader.progress import Progress
from p2pcache.loader.report import LoadReport, Waits
from p2pcache.loader.session import Closeable, Memory, Session
from p2pcache.loader.transfer.mapped import MappedDelivery
from p2pcache.loader.transfer.pipeline import Pipeline, Staging
from p2pcache.loader.transfer.sinks import DeviceSink, HostSink, IntoSink, Sink

HOST_READERS = 4  # threads; consumers need cores, too
DEVICE_READERS = 8  # threads; more wait for one another, and each has a slot to pin
SPARE_SLOTS = 4  # ring slots that are copied from while each reader fills one
PADDING_BYTES = ALIGN_BYTES * MAX_ITEMS  # that alignment may add to a read in a ring slot
MIN_LIMIT_BYTES = 1 << 20  # with less, a load would mostly wait


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings for measurements; the defaults suit other uses."""

    threads: int = 0  # that read; 0: by the machine's cores
    read_bytes: int = 0  # of one read at most; 0: by the destination
    ring_slots: int = 0  # at most; 0: by the number of readers
    copy_streams: int = 1  # CUDA streams for copies to the device
    batch_bytes: int = 0  # of a batch of small tensors at most; 0: by source and destination

    def readers(self, most: int) -> int:
        """How many threads read, at most `most` unless it is set; at least two."""
        return self.threads or min(most, max(2, os.cpu_count() or 2))


class Delivery(Protocol):
    """What brings a load's tensors: threads that read, or mappings."""

    waits: Waits
    on_wait: Callable[[int], None]
    bytes_read: int
    bytes_delivered: int

    def next(self) -> list[tuple[str, Any]] | None:
        """Wait for the next (name, tensor); None at the end."""
        ...

    def close(self) -> None:
        """End it; tensors that were handed out stay valid."""
        ...


class TensorStream(Closeable):
    """Iterator of (name, tensor) in the order in which bytes arrive. Close it, or use `with`."""

    def __init__(
        self, session: Session, delivery: Delivery, budget: Budget, progress: Progress
    ) -> None:
        """Made by `iter_tensors`.

        Args:
            session: its source is closed with the stream.
            delivery: has begun.
            budget: counts the memory below the limit.
            progress: shows how far it is.
        """
        self._progress = progress
        delivery.on_wait = progress.tick  # no method of ours: an abandoned stream ends its threads
        self.report = LoadReport(
            session.source.name,
            memory_limit_bytes=budget.limit_bytes,
            mapped=isinstance(delivery, MappedDelivery),
            waits=delivery.waits,
        )
        self._source = session.source
        self._delivery = delivery
        self._budget = budget
        self._ready: deque[tuple[str, Any]] = deque()
        self._began = time.monotonic()
        self._closed = False
        self._lock = threading.Lock()  # threads may share the iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        with self._lock:
            return self._next()

    def _next(self) -> tuple[str, Any]:
        if not self._ready and not self._closed:
            try:
                found = self._delivery.next()
            except BaseException:
                self.report.failed = True
                self.close()
                raise
            self._progress.tick(self._delivery.bytes_delivered)
            if found is None:
                self.close()
            else:
                self._ready.extend(found)
        if not self._ready:
            raise StopIteration
        self.report.tensors += 1
        return self._ready.popleft()

    def close(self) -> None:
        """Stop the load, unless it has ended, and log its line. More than once does no harm."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        try:
            self._delivery.close()
        finally:
            self._source.close()
            self._progress.close(self._delivery.bytes_delivered)
            self._log_report()

    def _log_report(self) -> None:
        report = self.report
        report.seconds = time.monotonic() - self._began
        report.bytes = self._delivery.bytes_delivered
        report.bytes_read = self._delivery.bytes_read
        report.memory_peak_bytes = self._budget.peak_bytes
        report.source = self._source.stats()
        report.log()


def start(
    session: Session,
    items: Sequence[LoadItem],
    *,
    device: str,
    framework: Framework,
    limit_bytes: int,
    owned: bool,
    tuning: Tuning,
    memory: Memory = "auto",
    bar: bool | None = None,
) -> TensorStream:
    """Begin a load of new tensors.

    Args:
        session: the open model.
        items: what to load, in order.
        device: "cpu", or torch's word for a GPU.
        framework: of the tensors.
        limit_bytes: of memory that the loader holds itself.
        owned: True: tensors own their memory; False: each is valid until the next is asked for.
        tuning: for measurements.
        memory: whether host tensors are mappings; they need none of the limit.
        bar: see `Progress`.

    Raises:
        UsageError: the framework or the device can't be used.
        NoSpace: no memory for arena or ring.
    """
    device = check_framework(framework, device)
    mappable = session.mappable(memory)
    progress = _progress(session, items, bar)
    if device == "cpu" and mappable is not None:
        found = MappedDelivery(mappable, items, framework, session.deadline)
        return TensorStream(session, found, Budget(0), progress)
    batch_bytes = _batch_bytes(session, tuning, on_device=device != "cpu")
    plan = _batches_within(limit_bytes, items, batch_bytes)
    if device == "cpu":
        pool = HostPool(limit_bytes, *_memory_sizes(plan))
        sink: Sink = HostSink(pool, framework, owned=owned)
        return _run(session, plan, sink, pool.budget, tuning, None, progress)
    backend = CudaBackend(device, tuning.copy_streams)
    staging, tuning = make_staging(backend, limit_bytes, tuning)
    budget = Budget(limit_bytes)
    return _run(session, plan, DeviceSink(backend, budget), budget, tuning, staging, progress)


def _progress(session: Session, items: Sequence[LoadItem], bar: bool | None) -> Progress:  # noqa: FBT001
    return Progress(session.source.name, sum(item.nbytes for item in items), bar=bar)


def start_placed(
    session: Session,
    placement: Placement,
    limit_bytes: int,
    tuning: Tuning,
    bar: bool | None = None,  # noqa: FBT001
) -> TensorStream:
    """Begin a load into the caller's own tensors.

    Args:
        session: the open model.
        placement: where each tensor goes.
        limit_bytes: of memory for conversions and for the ring.
        tuning: for measurements.
        bar: see `Progress`.

    Raises:
        UsageError: the device can't be used.
        NoSpace: no memory for arena or ring.
    """
    by_transfer: list[list[LoadItem]] = [[], [], []]
    for item in placement.items:
        by_transfer[placement.transfer(item.info.name)].append(item)
    converted = _batches_within(
        limit_bytes, by_transfer[Transfer.CONVERTED], tuning.batch_bytes or BATCH_BYTES
    )
    pool = HostPool(limit_bytes, *_memory_sizes(converted))
    backend, staging = None, None
    if placement.buffers:
        device = str(next(iter(placement.buffers.values())).device)
        backend = CudaBackend(device, tuning.copy_streams)
        backend.adopt(placement.buffers.values())
        staging, tuning = make_staging(backend, limit_bytes, tuning)
    sink = IntoSink(placement, backend, HostSink(pool, placement.converted or "pt", owned=True))
    plan = [
        *batches(by_transfer[Transfer.DIRECT]),
        *batches(by_transfer[Transfer.STAGED], _batch_bytes(session, tuning, on_device=True)),
        *converted,
    ]
    order = {item.info.name: i for i, item in enumerate(placement.items)}
    plan.sort(key=lambda batch: order[batch.items[0].info.name])
    progress = _progress(session, placement.items, bar)
    return _run(session, plan, sink, pool.budget, tuning, staging, progress)


def _batch_bytes(session: Session, tuning: Tuning, *, on_device: bool) -> int:
    """A batch of a model that still arrives is waited for as one, so it is small."""
    large = on_device and session.source.complete
    return tuning.batch_bytes or (DEVICE_BATCH_BYTES if large else BATCH_BYTES)


def _batches_within(limit_bytes: int, items: Sequence[LoadItem], batch_bytes: int) -> list[Batch]:
    """Batches so small that two of them, one handed out and one being read, fit the limit."""
    return batches(items, min(batch_bytes, limit_bytes // 2))


def _memory_sizes(plan: Sequence[Batch]) -> tuple[int, int]:
    """Bytes of all batches together, each on pages of its own, and of the largest."""
    sizes = [-(-batch.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for batch in plan]
    return sum(sizes), max(sizes, default=0)


def make_staging(backend: Backend, limit_bytes: int, tuning: Tuning) -> tuple[Staging, Tuning]:
    """Make a ring that fits the memory limit.

    Args:
        backend: the device.
        limit_bytes: of the ring's slots together.
        tuning: what the caller wishes.

    Returns:
        The ring, and a tuning whose reads fit its slots.

    Raises:
        NoSpace: no memory can be pinned.
    """
    threads = tuning.readers(DEVICE_READERS)
    slots = tuning.ring_slots or threads + SPARE_SLOTS
    slots = max(1, min(slots, limit_bytes // (2 * PADDING_BYTES)))
    most = max(2 * PADDING_BYTES, min(tuning.read_bytes or DEVICE_READ_BYTES, limit_bytes // slots))
    slot_bytes = 1 << most.bit_length() - 1  # whole huge pages, where it is that large
    ring = Ring(backend, slots, slot_bytes)
    fitted = replace(
        tuning, threads=threads, read_bytes=slot_bytes - PADDING_BYTES, ring_slots=slots
    )
    return Staging(backend, ring), fitted


def check_framework(framework: Framework, device: object) -> str:
    """Import the framework, in the caller's thread, and check that it knows the device.

    Args:
        framework: of the tensors.
        device: a name, a number or a torch.device.

    Returns:
        The device's name; "cpu" for all names of the host.

    Raises:
        UsageError: the framework is missing, or doesn't know the device.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"framework {framework!r}: expected one of {', '.join(FRAMEWORKS)}")
    word = f"cuda:{device}" if isinstance(device, int) else str(device)  # as torch reads a number
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
    progress: Progress,
) -> TensorStream:
    session.source.on_planned([r for batch in plan for r in batch.ranges()])
    pipeline = Pipeline(
        session.source,
        plan,
        sink,
        session.deadline,
        threads=tuning.readers(HOST_READERS),
        read_bytes=tuning.read_bytes or READ_BYTES,
        staging=staging,
    )
    return TensorStream(session, pipeline, budget, progress)

"""An open model, whose tensors are read one by one, whole or sliced, as with `safetensors.safe_open`."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import index as index_of
from pathlib import Path
from types import EllipsisType
from typing import Any, SupportsIndex, TypeGuard

from p2pcache.errors import NotFound, UsageError
from p2pcache.loader.format.dtypes import Framework
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.memory.arena import Block, fresh
from p2pcache.loader.memory.backend import CudaBackend, to_device
from p2pcache.loader.memory.tensors import wrap
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.selection import LoadItem, cut_tensor, whole_tensor
from p2pcache.loader.report import LoadReport
from p2pcache.loader.session import Closeable, Memory, Session
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.transfer.device_reads import LEAST_BYTES, DeviceReads
from p2pcache.loader.transfer.mapped import map_tensor
from p2pcache.loader.transfer.reading import read_host

_WAIT_S = 1.0  # of one wait, before the deadline is checked again
_THREADS = 2  # that read one large tensor
Index = SupportsIndex | slice | EllipsisType


class OpenModel(Closeable):
    """Made by `safe_open`; use `with`, or `close`. Thread-safe."""

    def __init__(
        self,
        session: Session,
        framework: Framework,
        device: str,
        timeout_s: float | None,
        memory: Memory = "auto",
    ) -> None:
        """Take over a session; its source is closed with the model.

        Args:
            session: the open model.
            framework: of the tensors.
            device: where tensors go.
            timeout_s: of each tensor, in seconds; None: no limit.
            memory: whether host tensors are mappings.
        """
        self._session = session
        self._mappable = session.mappable(memory)
        self._framework = framework
        self._device = device
        self._timeout_s = timeout_s
        self._closed = False
        self._opener = os.getpid()
        self._report = LoadReport(session.source.name, mapped=self._mappable is not None)
        self._read_names: set[str] = set()  # tensors of which something was read
        self._first_s = 0.0  # when the first tensor was asked for, on the monotonic clock
        self._reset_process_state()

    def _reset_process_state(self) -> None:
        """Make the threads and locks of this process."""
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._device_reads: DeviceReads | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0  # calls of `read_item` that run

    def _reset_after_fork(self) -> None:
        """In a forked child, such as a DataLoader's worker, threads are gone and locks may be held."""
        if self._pid != os.getpid():
            self._reset_process_state()

    def close(self) -> None:
        """Close the files; tensors stay valid. Logs the load's line if something was read. Idempotent."""
        self._reset_after_fork()
        with self._idle:
            first, self._closed = not self._closed, True
            self._session.source.stop()
            # A descriptor that is closed during a read could become another file's.
            self._idle.wait_for(lambda: self._busy == 0)
            pool, self._pool = self._pool, None
            staged, self._device_reads = self._device_reads, None
        try:
            if pool is not None:
                pool.shutdown()
            if staged is not None:
                staged.close()
        finally:
            self._session.source.close()
        if first and self._read_names and self._opener == os.getpid():
            self._report.tensors = len(self._read_names)
            self._report.source = self._session.source.stats()
            self._report.log()

    @property
    def directory(self) -> Path | None:
        """Where the model lies, if it is complete here and is a directory; None: it isn't."""
        source = self._session.source
        return source.path if isinstance(source, DirectorySource) and source.path.is_dir() else None

    def keys(self) -> list[str]:
        """The names of all tensors, in order of file and offset."""
        return list(self._session.catalog.tensors)

    def offset_keys(self) -> list[str]:
        """The same as `keys`; the safetensors library gives the two in different orders."""
        return self.keys()

    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of the headers, merged; of equal keys the first file's counts."""
        return dict(self._session.catalog.metadata)

    def files(self) -> dict[str, int]:
        """Path and size in bytes of all files of the model, also of those without tensors."""
        return dict(self._session.catalog.files)

    def get_tensor(self, name: str) -> Any:
        """Read one tensor, which owns its memory. Bytes that haven't arrived come first and are waited for.

        Raises:
            NotFound: no tensor of this name.
            TimedOut: its bytes didn't arrive in time.
        """
        return self.read_item(whole_tensor(self._info(name)))

    def get_slice(self, name: str) -> "TensorSlice":
        """A tensor of which a part will be read: `get_slice(name)[8:16, :]`.

        Raises:
            NotFound: no tensor of this name.
        """
        return TensorSlice(self, self._info(name))

    def read_item(self, item: LoadItem) -> Any:
        """Read one tensor or slice.

        Raises:
            UsageError: the model is closed; or it was still arriving when this process was forked.
            TimedOut: its bytes didn't arrive in time.
        """
        self._reset_after_fork()
        if self._opener != os.getpid() and not self._session.source.complete:
            raise UsageError(
                f"{self._session.source.name} was still arriving when this process was forked; "
                "open it here again"
            )
        with self._lock:
            if self._closed:
                raise UsageError(f"{self._session.source.name} is closed; open it again")
            self._busy += 1
            self._first_s = self._first_s or time.monotonic()
        try:
            return self._read_item(item)
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _read_item(self, item: LoadItem) -> Any:
        # Of a mapping a device copies as quickly as a thread fills slots.
        if self._device != "cpu" and self._mappable is None and item.nbytes >= LEAST_BYTES:
            return self._stage_item(item)
        tensor = None
        if self._mappable is not None:
            tensor = map_tensor(self._mappable, item, self._framework)
        if tensor is None:
            tensor = self._copy_item(item)
        else:
            self._count(item, 0.0, 0.0)
        return tensor if self._device == "cpu" else to_device(tensor, self._device)

    def _stage_item(self, item: LoadItem) -> Any:
        batch, waited_s = self._available_batch(item)
        began = time.monotonic()
        with self._lock:
            if self._device_reads is None:
                backend = CudaBackend(self._device)
                self._device_reads = DeviceReads(self._session.source, backend)
            reads = self._device_reads
        tensor = reads.bring(batch)
        self._count(item, waited_s, time.monotonic() - began)
        return tensor

    def _copy_item(self, item: LoadItem) -> Any:
        batch, waited_s = self._available_batch(item)
        began = time.monotonic()
        block = fresh(item.nbytes)
        self._read(batch, block)
        self._count(item, waited_s, time.monotonic() - began)
        info = item.info
        return wrap(block.owner, 0, item.nbytes, info.dtype, item.shape, self._framework)

    def _count(self, item: LoadItem, waited_s: float, reading_s: float) -> None:
        report = self._report
        with self._lock:
            self._read_names.add(item.info.name)
            report.bytes += item.nbytes
            report.waits.source_s += waited_s
            report.waits.reading_s += reading_s
            report.seconds = time.monotonic() - self._first_s

    def _info(self, name: str) -> TensorInfo:
        found = self._session.catalog.tensors.get(name)
        if found is None:
            raise NotFound(f"{self._session.source.name}: no tensor {name!r}; keys() lists them")
        return found

    def _available_batch(self, item: LoadItem) -> tuple[Batch, float]:
        """A batch of one item, all of whose bytes are available, and the seconds that took."""
        batch, began = Batch([]), time.monotonic()
        batch.add(item)
        source = self._session.source
        deadline = Deadline(self._timeout_s, source.name)
        left = [r for r in batch.ranges() if not source.available(*r)]
        for wanted in left:
            source.demand(*wanted)
        while left:
            deadline.check()
            source.wait(left, deadline.slice_s(_WAIT_S))
            left = [r for r in left if not source.available(*r)]
        return batch, time.monotonic() - began

    def _read(self, batch: Batch, block: Block) -> None:
        source = self._session.source
        reads = list(batch.reads())
        if len(reads) == 1:
            read_host(source, reads[0], [block.view])
            return
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "p2pcache-open")
            pool = self._pool
        for future in [pool.submit(read_host, source, read, [block.view]) for read in reads]:
            future.result()


class TensorSlice:
    """A tensor that is read when it is indexed."""

    def __init__(self, model: OpenModel, info: TensorInfo) -> None:
        """Made by `OpenModel.get_slice`."""
        self._model = model
        self._info = info

    def get_shape(self) -> list[int]:
        """The whole tensor's shape, in elements."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Safetensors' word for the dtype, such as "BF16"."""
        return self._info.dtype

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Read a part: numbers, ranges with positive steps and `...`.

        Only the first dimension that is cut saves reading; others are cut in memory.

        Raises:
            UsageError: an index of another kind, or outside the shape.
            TimedOut: the bytes didn't arrive in time.
        """
        spans, rest = _normalise(index, self._info.shape)
        for dim, (start, stop) in enumerate(spans):
            if (start, stop) != (0, self._info.shape[dim]):
                found = self._model.read_item(cut_tensor(self._info, dim, start, stop))
                cuts = rest[dim]
                rest[dim] = slice(None, None, cuts.step) if isinstance(cuts, slice) else 0
                break
        else:
            found = self._model.read_item(whole_tensor(self._info))
        if all(item == slice(None) for item in rest):
            return found
        if not hasattr(found, "__getitem__"):
            raise UsageError("framework='raw' slices one dimension only, with a range")
        return found[tuple(rest)]


def _is_number(item: object) -> TypeGuard[SupportsIndex]:
    """Whether it is an index number, also of numpy or torch. A bool or a 1-element tensor is a mask or list."""
    scalar = getattr(item, "shape", ()) == ()
    return isinstance(item, SupportsIndex) and not isinstance(item, bool) and scalar


def _normalise(
    index: Index | tuple[Index, ...], shape: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int | slice]]:
    """The range (start, stop) of each dimension, and the index that takes the result out of the whole."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, item in enumerate(items) if item is ...]
    if len(dots) > 1 or len(items) - len(dots) > len(shape):
        raise UsageError(f"{len(items)} indices don't fit the shape {list(shape)}")
    at = dots[0] if dots else len(items)
    rest: list[Index] = [slice(None)] * (len(shape) - len(items) + len(dots))
    full = items[:at] + rest + items[at + 1 :]
    spans: list[tuple[int, int]] = []
    after: list[int | slice] = []
    for item, length in zip(full, shape, strict=True):
        if isinstance(item, slice):
            try:
                start, stop, step = item.indices(length)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{item}: {error}") from None
            if step < 1:
                raise UsageError("slices of tensors go up")
            spans.append((start, max(start, stop)))
            every = None if step == 1 else step
            cuts = spans[-1] != (0, length)
            after.append(slice(start, spans[-1][1], every) if cuts else slice(None, None, every))
        elif _is_number(item):
            number = index_of(item)
            if not -length <= number < length:
                raise UsageError(f"index {number} is outside a dimension of {length}")
            spans.append((number % length, number % length + 1))
            after.append(number % length)
        else:
            raise UsageError("index with numbers, ranges and ...; take the rest from the tensor")
    return spans, after

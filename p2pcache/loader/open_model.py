"""A model that is open: its tensors one by one, whole or sliced, like `safetensors.safe_open`."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import index as index_of
from types import EllipsisType
from typing import Any, SupportsIndex, TypeGuard

from p2pcache.errors import NotFound, UsageError
from p2pcache.loader.format.dtypes import Framework
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.memory.arena import Block, fresh
from p2pcache.loader.memory.backend import to_device
from p2pcache.loader.memory.tensors import wrap
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.selection import Want, cut, whole
from p2pcache.loader.report import LoadReport
from p2pcache.loader.session import Closing, Session
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.transfer.reading import read_host

_WAIT_S = 1.0
_THREADS = 2  # of one large tensor's reads
Index = SupportsIndex | slice | EllipsisType


class OpenModel(Closing):
    """Made by `safe_open`; use `with`, or `close`. Any number of threads may ask at once."""

    def __init__(
        self, session: Session, framework: Framework, device: str, timeout_s: float | None
    ) -> None:
        """Take over the session; its source is closed with the model."""
        self._session = session
        self._framework = framework
        self._device = device
        self._timeout_s = timeout_s
        self._closed = False
        self._opener = os.getpid()
        self._report = LoadReport(session.source.name)
        self._seen: set[str] = set()  # tensors of which something was read
        self._first_s = 0.0  # when the first of them was asked for
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process."""
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0  # calls of `bring`

    def _look_for_fork(self) -> None:
        """A child, such as a DataLoader's worker, has none of its parent's threads, and perhaps held locks."""
        if self._pid != os.getpid():
            self._begin()

    def close(self) -> None:
        """Let go of the files; tensors stay valid. The line, if any came. More than once does no harm."""
        self._look_for_fork()
        with self._idle:
            first, self._closed = not self._closed, True
            self._session.source.stop()
            # a descriptor that is closed under a read may be another file's the next moment
            self._idle.wait_for(lambda: self._busy == 0)
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._session.source.close()
        if first and self._seen and self._opener == os.getpid():
            self._report.tensors = len(self._seen)
            self._report.source = self._session.source.stats()
            self._report.log()

    def keys(self) -> list[str]:
        """The names of all tensors, in order of file and offset."""
        return list(self._session.catalog.tensors)

    def offset_keys(self) -> list[str]:
        """As `keys`: safetensors has these in another order."""
        return self.keys()

    def metadata(self) -> dict[str, str]:
        """The free texts in the headers."""
        return dict(self._session.catalog.metadata)

    def files(self) -> dict[str, int]:
        """All files of the model, also those that hold no tensors: path to bytes."""
        return dict(self._session.catalog.files)

    def get_tensor(self, name: str) -> Any:
        """One tensor, which owns its memory; waits for its bytes and lets them come first.

        Raises:
            NotFound: no tensor of this name.
            TimedOut: its bytes didn't arrive in time.
        """
        return self.bring(whole(self._info(name)))

    def get_slice(self, name: str) -> "TensorSlice":
        """A tensor of which only a part will be read: `get_slice(name)[8:16, :]`.

        Raises:
            NotFound: no tensor of this name.
        """
        return TensorSlice(self, self._info(name))

    def bring(self, want: Want) -> Any:
        """Read one tensor or slice.

        Raises:
            UsageError: the model is closed; or it was opened before a fork and had not arrived then.
            TimedOut: its bytes didn't arrive in time.
        """
        self._look_for_fork()
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
            return self._bring(want)
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def _bring(self, want: Want) -> Any:
        batch = Batch([])
        batch.add(want)
        asked = time.monotonic()
        self._await(batch)
        there = time.monotonic()
        block = fresh(want.nbytes)
        self._read(batch, block)
        self._count(want, there - asked, time.monotonic() - there)
        info = want.info
        tensor = wrap(block.owner, 0, want.nbytes, info.dtype, want.shape, self._framework)
        return tensor if self._device == "cpu" else to_device(tensor, self._device)

    def _count(self, want: Want, waited_s: float, reading_s: float) -> None:
        report = self._report
        with self._lock:
            self._seen.add(want.info.name)
            report.bytes += want.nbytes
            report.waits.source_s += waited_s
            report.waits.reading_s += reading_s
            report.seconds = time.monotonic() - self._first_s

    def _info(self, name: str) -> TensorInfo:
        found = self._session.catalog.tensors.get(name)
        if found is None:
            raise NotFound(f"{self._session.source.name}: no tensor {name!r}; keys() lists them")
        return found

    def _await(self, batch: Batch) -> None:
        source = self._session.source
        deadline = Deadline(self._timeout_s, source.name)
        left = [r for r in batch.ranges() if not source.available(*r)]
        for wanted in left:
            source.demand(*wanted)
        while left:
            deadline.check()
            source.wait(left, deadline.slice_s(_WAIT_S))
            left = [r for r in left if not source.available(*r)]

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
    """A tensor that is read when it's indexed."""

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
        """Ranges that go up, numbers and `...`; only the first range that cuts saves reading."""
        spans, after = _normal(index, self._info.shape)
        for dim, (start, stop) in enumerate(spans):
            if (start, stop) != (0, self._info.shape[dim]):
                found = self._model.bring(cut(self._info, dim, start, stop))
                cuts = after[dim]
                after[dim] = slice(None, None, cuts.step) if isinstance(cuts, slice) else 0
                break
        else:
            found = self._model.bring(whole(self._info))
        if all(item == slice(None) for item in after):
            return found
        if not hasattr(found, "__getitem__"):
            raise UsageError("framework='raw' slices one dimension only, with a range")
        return found[tuple(after)]


def _is_number(item: object) -> TypeGuard[SupportsIndex]:
    """Also numpy's and torch's numbers; but a bool, or a tensor with one element, is a mask or a list."""
    scalar = getattr(item, "shape", ()) == ()
    return isinstance(item, SupportsIndex) and not isinstance(item, bool) and scalar


def _normal(
    index: Index | tuple[Index, ...], shape: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int | slice]]:
    """The range of each dimension, and the index that makes the wanted of the whole."""
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

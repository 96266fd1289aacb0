"""Tensors over private mappings of a complete model's files: no copy, no memory, no threads."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from p2pcache.loader.format.dtypes import BITS, Framework, import_torch, native_shape, torch_dtype
from p2pcache.loader.memory.arena import fresh
from p2pcache.loader.memory.tensors import wrap
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.selection import LoadItem
from p2pcache.loader.report import Waits
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.transfer.reading import read_host

_AT_ONCE = (
    64  # tensors that are made together: the first comes soon, and a call costs little for each
)


def map_tensor(source: DirectorySource, item: LoadItem, framework: Framework) -> Any:
    """Make a tensor over the mapping of its file.

    Returns:
        The tensor. It is a copy if it is a slice across rows, or lies where its dtype can't; None: the
        file can't be mapped.
    """
    dtype, shape = item.info.dtype, item.shape
    if not item.nbytes:
        return wrap(bytearray(), 0, 0, dtype, shape, framework)
    owner = source.mapping(item.info.path)
    if owner is None:
        return None
    if item.segments == 1 and item.start % max(1, BITS[dtype] // 8) == 0:
        return wrap(owner, item.start, item.nbytes, dtype, shape, framework)
    if framework != "pt":
        return _read(source, item, framework)
    rows, every = (item.segments, item.stride) if item.segments > 1 else (1, item.length)
    span = every * (rows - 1) + item.length
    torch = import_torch()
    flat = torch.frombuffer(owner, dtype=torch.uint8, count=span, offset=item.start)
    copied = flat.as_strided((rows, item.length), (every, 1)).clone(
        memory_format=torch.contiguous_format
    )
    return copied.reshape(-1).view(torch_dtype(dtype)).reshape(native_shape(dtype, shape, "pt"))


def _read(source: DirectorySource, item: LoadItem, framework: Framework) -> Any:
    batch, block = Batch([]), fresh(item.nbytes)
    batch.add(item)
    for read in batch.reads():
        read_host(source, read, [block.view])
    return wrap(block.owner, 0, item.nbytes, item.info.dtype, item.shape, framework)


class MappedDelivery:
    """Mapped tensors in the given order; implements `stream.Delivery`."""

    def __init__(
        self,
        source: DirectorySource,
        items: Iterable[LoadItem],
        framework: Framework,
        deadline: Deadline,
    ) -> None:
        """Map nothing yet."""
        self.waits = Waits()
        self.on_wait: Callable[[int], None] = lambda _: None
        self.bytes_read = 0
        self.bytes_delivered = 0
        self._source = source
        self._left = deque(items)
        self._framework = framework
        self._deadline = deadline

    def next(self) -> list[tuple[str, Any]] | None:
        """The next tensors; None at the end.

        Raises:
            TimedOut: the caller's time is up.
            P2PCacheError: a file can't be read, or was changed.
        """
        self._deadline.check()
        made: list[tuple[str, Any]] = []
        while self._left and len(made) < _AT_ONCE:
            item = self._left.popleft()
            tensor = map_tensor(self._source, item, self._framework)
            if tensor is None:
                tensor = _read(self._source, item, self._framework)
            made.append((item.info.name, tensor))
            self.bytes_delivered += item.nbytes
        return made or None

    def close(self) -> None:
        """Give up what is left; tensors that were handed out stay valid."""
        self._left.clear()

"""A device in host memory whose copies happen as late as they may."""

import gc
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from p2pcache.loader.format.dtypes import torch_dtype
from p2pcache.loader.memory.backend import HostMemory

POISON = 0xDB


class FakeBuffer:
    """Device memory; it is an error to read it before its copies are done."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(b"\xee" * nbytes)
        self.pending: set[int] = set()


class FakeEvent:
    """An event whose copies are made when somebody waits for it."""

    def __init__(self) -> None:
        self.copies: list[tuple[HostMemory, int, int, FakeBuffer, int]] = []
        self.come = False


class FakeAsyncBackend:
    """A device whose copies happen as late as they may: when somebody waits for their event.

    So a slot that is filled again too early is copied with the wrong bytes; a slot that is given
    out again is poisoned first; and a buffer that is used before its events is refused.
    """

    def __init__(self) -> None:
        self._mine = threading.local()
        self._lock = threading.RLock()
        self.events: list[FakeEvent] = []
        self.copies = 0
        self._pinned: list[weakref.ref[Any]] = []

    def pinned(self) -> int:
        """Slots that weren't freed."""
        gc.collect()
        return sum(view() is not None for view in self._pinned)

    def enter(self) -> None:
        pass

    def alloc_host(self, nbytes: int) -> HostMemory:
        memory = bytearray([POISON]) * nbytes
        view = memoryview(memory)
        self._pinned.append(weakref.ref(view))
        return HostMemory(view, memory)

    def alloc_device(self, nbytes: int) -> FakeBuffer:
        return FakeBuffer(nbytes)

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        assert start + length <= len(source.view)
        assert offset + length <= len(buffer.data)
        if not hasattr(self._mine, "event"):
            self._mine.event = FakeEvent()
        event = self._mine.event
        event.copies.append((source, start, length, buffer, offset))
        with self._lock:
            self.copies += 1
            buffer.pending.add(id(event))

    def copy_rows(
        self, source: HostMemory, length: int, stride: int, count: int, buffer: Any, offset: int
    ) -> None:
        for row in range(count):
            self.copy(source, row * stride, length, buffer, offset + row * length)

    def record(self) -> FakeEvent:
        event: FakeEvent = self._mine.__dict__.pop("event", None) or FakeEvent()
        with self._lock:
            self.events.append(event)
        return event

    def done(self, event: FakeEvent) -> bool:
        return event.come

    def sync(self, event: FakeEvent) -> None:
        with self._lock:
            if event.come:
                return
            for source, start, length, buffer, offset in event.copies:
                buffer.data[offset : offset + length] = source.view[start : start + length]
            for source, _, _, buffer, _ in event.copies:
                source.view[:] = bytes([POISON]) * len(source.view)  # it's recycled from here on
                buffer.pending.discard(id(event))
            event.come = True

    def record_all(self) -> list[FakeEvent]:
        with self._lock:
            return list(self.events)

    def ready(self, buffers: Iterable[FakeBuffer], events: list[FakeEvent]) -> None:
        for event in events:
            self.sync(event)

    def tensor(
        self, buffer: FakeBuffer, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> torch.Tensor:
        assert not buffer.pending, "a tensor was made before its copies were done"
        flat = torch.frombuffer(bytearray(buffer.data[offset : offset + nbytes]) or bytearray(1),
                                dtype=torch.uint8)[:nbytes]  # fmt: skip
        return flat.view(torch_dtype(dtype)).reshape(shape)

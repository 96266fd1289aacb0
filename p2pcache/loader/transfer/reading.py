"""Bytes from a source into memory: straight to where they belong, or by way of a ring slot."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from p2pcache.loader.memory.backend import Backend, HostMemory
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import ALIGN_BYTES, GAP_BYTES, Part, Read
from p2pcache.loader.source.base import Source
from p2pcache.loader.transfer.sinks import Target

_scratch = threading.local()  # where the bytes between wanted ones go


def read_host(source: Source, read: Read, views: Sequence[memoryview]) -> None:
    """Bring one read straight to its tensors.

    Raises:
        P2PCacheError: the source's own errors.
    """
    buffers = [
        _nowhere(part.length)
        if part.item < 0
        else views[part.item][part.offset : part.offset + part.length]
        for part in read.parts
    ]
    source.read(read.path, read.start, buffers)


def read_staged(
    source: Source,
    read: Read,
    target: Target,
    ring: Ring,
    backend: Backend,
    stop: Callable[[], bool],
) -> None:
    """Bring one read to its places on the device; the copies run on when this returns.

    Raises:
        P2PCacheError: the source's own errors.
    """
    slot = ring.acquire(stop)
    if slot is None:
        return
    try:
        buffers, copies = _lay_out(read.parts, target.places, slot)
        source.read(read.path, read.start, buffers)
        for start, length, buffer, offset in copies:
            backend.copy(slot, start, length, buffer, offset)
        event = backend.record()
    except BaseException:
        ring.give_back(slot)
        raise
    ring.copying(slot, event)
    target.events.append(event)


def _lay_out(
    parts: Sequence[Part], places: Sequence[tuple[Any, int]], slot: HostMemory
) -> tuple[list[memoryview], list[tuple[int, int, Any, int]]]:
    """Where in the slot each part goes, and the copies (slot start, length, buffer, offset).

    Parts of one device buffer lie in the slot as they will lie there, so that they are one copy;
    the alignment bytes between two of them are copied along and mean nothing.
    """
    buffers: list[memoryview] = []
    copies: list[tuple[int, int, Any, int]] = []
    for item, inside, length in parts:
        if item < 0:
            buffers.append(_nowhere(length))
            continue
        buffer, base = places[item]
        offset = base + inside
        start = 0
        if copies:
            first, copied, last, begin = copies[-1]
            start = first + offset - begin
            if last is buffer and 0 <= offset - (begin + copied) < ALIGN_BYTES:
                copies[-1] = (first, start + length - first, buffer, begin)
            else:
                start = -(-(first + copied) // ALIGN_BYTES) * ALIGN_BYTES
                copies.append((start, length, buffer, offset))
        else:
            copies.append((start, length, buffer, offset))
        buffers.append(slot.view[start : start + length])
    return buffers, copies


def _nowhere(length: int) -> memoryview:
    found = getattr(_scratch, "view", None)
    if found is None:
        found = _scratch.view = memoryview(bytearray(GAP_BYTES))
    return found[:length]

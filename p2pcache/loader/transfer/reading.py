"""One read from a source: straight into host memory, or through a ring slot to a device."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from p2pcache.loader.memory.backend import Backend, HostMemory
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import ALIGN_BYTES, GAP_BYTES, Read, ReadPart
from p2pcache.loader.source.base import Source
from p2pcache.loader.transfer.sinks import Target

_scratch = threading.local()  # `view`: memory for bytes that nobody wants


def read_host(source: Source, read: Read, views: Sequence[memoryview]) -> None:
    """Read straight into host memory.

    Args:
        source: where from.
        read: which bytes.
        views: memory of the batch's items.

    Raises:
        P2PCacheError: the source's own errors.
    """
    buffers = [
        _discard_buffer(part.length)
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
    """Read into a ring slot and begin its copies to the device; they run on when this returns.

    Args:
        source: where from.
        read: which bytes; with padding they must fit in a slot.
        target: device memory of the batch's items.
        ring: has the slots.
        backend: the device.
        stop: ends the wait for a slot; then nothing is read.

    Raises:
        P2PCacheError: the source's own errors.
    """
    slot = ring.acquire(stop)
    if slot is None:
        return
    try:
        if read.rows is not None:
            item, offset, length, stride, count = read.rows
            buffer, base = target.places[item]
            source.read(read.path, read.start, [slot.view[: read.nbytes]])
            backend.copy_rows(slot, length, stride, count, buffer, base + offset)
        else:
            buffers, copies = _place_parts(read.parts, target.places, slot)
            source.read(read.path, read.start, buffers)
            for start, length, buffer, offset in copies:
                backend.copy(slot, start, length, buffer, offset)
        event = backend.record()
    except BaseException:
        ring.give_back(slot)
        raise
    ring.on_copying(slot, event)


def _place_parts(
    parts: Sequence[ReadPart], places: Sequence[tuple[Any, int]], slot: HostMemory
) -> tuple[list[memoryview], list[tuple[int, int, Any, int]]]:
    """Choose where in the slot each part goes.

    Neighbours in one device buffer lie in the slot as they will lie there, so that they are one copy.
    It includes the alignment bytes between them.

    Returns:
        A buffer for each part, and the copies: (start in the slot, length, device buffer, offset in it).
    """
    buffers: list[memoryview] = []
    copies: list[tuple[int, int, Any, int]] = []
    for item, inside, length in parts:
        if item < 0:
            buffers.append(_discard_buffer(length))
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


def _discard_buffer(length: int) -> memoryview:
    found = getattr(_scratch, "view", None)
    if found is None:
        found = _scratch.view = memoryview(bytearray(GAP_BYTES))
    return found[:length]

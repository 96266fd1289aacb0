"""The ring, on a device whose copies happen as late as they may."""

import threading

import pytest

from p2pcache.errors import NoSpace
from p2pcache.loader.memory.backend import HostMemory
from p2pcache.loader.memory.ring import Ring
from tests.loader.loader_kit import torch_bytes
from tests.loader.memory.fake_device import FakeAsyncBackend, FakeEvent


def never() -> bool:
    return False


def test_a_slot_is_reused_only_after_its_copy() -> None:
    backend = FakeAsyncBackend()
    ring = Ring(backend, 1, 16)
    slot = ring.acquire(never)
    assert slot is not None
    slot.view[:] = b"A" * 16
    buffer = backend.alloc_device(16)
    backend.copy(slot, 0, 16, buffer, 0)
    ring.on_copying(slot, backend.record())
    again = ring.acquire(never)
    assert again is not None
    again.view[:] = b"B" * 16
    assert buffer.data == b"A" * 16


def test_the_fake_catches_a_ring_that_does_not_wait() -> None:
    """The fake device must be able to find a fault, or the other tests mean nothing."""
    backend = FakeAsyncBackend()
    slot, buffer = backend.alloc_host(4), backend.alloc_device(4)
    slot.view[:] = b"AAAA"
    backend.copy(slot, 0, 4, buffer, 0)
    event = backend.record()
    with pytest.raises(AssertionError, match="before its copies"):
        backend.tensor(buffer, 0, 4, "U8", (4,))
    slot.view[:] = b"BBBB"  # recycled too early
    backend.ready([buffer], [event])
    assert torch_bytes(backend.tensor(buffer, 0, 4, "U8", (4,))) == b"BBBB"


class CountingBackend(FakeAsyncBackend):
    """Counts the slots that it makes, and makes `most` at most."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.made = 0
        self._most = most

    def alloc_host(self, nbytes: int) -> HostMemory:
        if self.made == self._most:
            raise NoSpace("can't pin more")
        self.made += 1
        return super().alloc_host(nbytes)


def copied(backend: FakeAsyncBackend, ring: Ring) -> FakeEvent:
    """Copy from one slot; the copy is left running."""
    slot = ring.acquire(never)
    assert slot is not None
    backend.copy(slot, 0, 16, backend.alloc_device(16), 0)
    event = backend.record()
    ring.on_copying(slot, event)
    return event


def test_slots_are_made_only_when_copies_lag() -> None:
    backend = CountingBackend(9)
    ring = Ring(backend, 3, 16)
    for _ in range(5):
        backend.sync(copied(backend, ring))
    assert backend.made == 1
    for _ in range(7):
        copied(backend, ring)
    assert backend.made == 3


def test_a_ring_goes_on_with_the_slots_that_could_be_made() -> None:
    backend = CountingBackend(2)
    ring = Ring(backend, 8, 16)
    for _ in range(7):
        copied(backend, ring)
    assert backend.made == 2
    with pytest.raises(NoSpace):
        Ring(CountingBackend(0), 8, 16)


def test_acquire_waits_for_a_slot_and_can_be_stopped() -> None:
    ring = Ring(FakeAsyncBackend(), 1, 16)
    slot = ring.acquire(never)
    assert slot is not None
    stop = threading.Event()
    found: list[HostMemory | None] = []
    thread = threading.Thread(target=lambda: found.append(ring.acquire(stop.is_set)))
    thread.start()
    thread.join(0.15)
    assert thread.is_alive()
    stop.set()
    thread.join(30)
    assert found == [None]
    ring.give_back(slot)
    assert ring.acquire(never) is slot

"""A ring buffer of pinned memory: reads fill its slots, copies to the device empty them.

A slot is free, or being filled by a reader, or being copied from. A reader gets it again only after
the event of its last copy. Slots are made when they are needed, since pinning takes time and a
source that is slower than the device needs two at most.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from p2pcache.errors import NoSpace
from p2pcache.loader.memory.backend import Backend, HostMemory

_POLL_S = 0.1  # seconds between two looks of a waiting thread at `stop`


class Ring:
    """Bounded staging memory between reader threads and a device. Thread-safe."""

    def __init__(self, backend: Backend, slots: int, slot_bytes: int) -> None:
        """Allocate the first slot.

        Args:
            backend: the device, which has the memory and the events.
            slots: how many at most. One for each reader, and a few that are copied from, keep all busy.
            slot_bytes: size of each.

        Raises:
            NoSpace: no memory can be pinned.
        """
        self._backend = backend
        self.slot_bytes = slot_bytes
        self.nbytes = slots * slot_bytes
        self.waited_s = 0.0
        self._free = deque([backend.alloc_host(slot_bytes)])
        self._slots_left = slots - 1
        self._copying: deque[tuple[HostMemory, Any]] = deque()  # the oldest copy first
        self._changed = threading.Condition()

    def acquire(self, stop: Callable[[], bool]) -> HostMemory | None:
        """Wait for a slot from which no copy runs; None once `stop()` is true.

        Raises:
            P2PCacheError: the device failed.
        """
        began = time.monotonic()
        slot = self._next_slot(stop)
        self.waited_s += time.monotonic() - began
        return slot

    def _next_slot(self, stop: Callable[[], bool]) -> HostMemory | None:
        while True:
            with self._changed:
                while not self._free and not self._copying and not self._slots_left:
                    if stop():
                        return None
                    self._changed.wait(_POLL_S)
                if self._free:
                    return self._free.popleft()
                oldest = None
                if self._slots_left and not (
                    self._copying and self._backend.done(self._copying[0][1])
                ):
                    self._slots_left -= 1
                else:
                    oldest = self._copying.popleft()
            # without the lock, so that others can give slots back meanwhile
            if oldest is not None:
                self._backend.sync(oldest[1])
                return oldest[0]
            try:
                return self._backend.alloc_host(self.slot_bytes)
            except NoSpace:  # the load goes on with the slots that were made
                self._slots_left = 0

    def on_copying(self, slot: HostMemory, event: Any) -> None:
        """The slot's copies have begun; the slot is free again after `event`."""
        with self._changed:
            self._copying.append((slot, event))
            self._changed.notify()

    def give_back(self, slot: HostMemory) -> None:
        """Free a slot from which no copy was begun."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def close(self) -> None:
        """Wait for every copy, and drop the slots. More than once does no harm."""
        with self._changed:
            while self._copying:
                slot, event = self._copying.popleft()
                self._backend.sync(event)
                self._free.append(slot)
            self._free.clear()

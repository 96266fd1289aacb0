"""A few slots of pinned memory, used in turn: filled by a read, emptied by a copy to the device.

A slot is free, or a reader fills it, or copies from it run. It's given to a reader again only
after the event of its last copy. Slots are made when they are needed: pinning takes time, and a
source that is slower than the device never needs more than two.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from p2pcache.errors import NoSpace
from p2pcache.loader.memory.backend import Backend, HostMemory

_TURN_S = 0.1  # how often a waiting thread looks whether it shall stop


class Ring:
    """Bounded staging memory between readers and a device."""

    def __init__(self, backend: Backend, slots: int, slot_bytes: int) -> None:
        """Allocate the first slot.

        Args:
            backend: whose host memory and events.
            slots: at most; one for each reader and a few that are copied from meanwhile keep all busy.
            slot_bytes: of each.

        Raises:
            NoSpace: the system gives no such memory.
        """
        self._backend = backend
        self.slot_bytes = slot_bytes
        self.nbytes = slots * slot_bytes
        self.waited_s = 0.0
        self._free = deque([backend.alloc_host(slot_bytes)])
        self._unmade = slots - 1
        self._copying: deque[tuple[HostMemory, Any]] = deque()  # the oldest copy first
        self._changed = threading.Condition()

    def acquire(self, stop: Callable[[], bool]) -> HostMemory | None:
        """A slot that nobody reads any more; None once `stop()` is true.

        Raises:
            P2PCacheError: the device failed.
        """
        began = time.monotonic()
        slot = self._next(stop)
        self.waited_s += time.monotonic() - began
        return slot

    def _next(self, stop: Callable[[], bool]) -> HostMemory | None:
        while True:
            with self._changed:
                while not self._free and not self._copying and not self._unmade:
                    if stop():
                        return None
                    self._changed.wait(_TURN_S)
                if self._free:
                    return self._free.popleft()
                oldest = None
                if self._unmade and not (self._copying and self._backend.done(self._copying[0][1])):
                    self._unmade -= 1
                else:
                    oldest = self._copying.popleft()
            # outside the lock: others may give slots back meanwhile
            if oldest is not None:
                self._backend.sync(oldest[1])
                return oldest[0]
            try:
                return self._backend.alloc_host(self.slot_bytes)
            except NoSpace:  # it goes on with those that there are
                self._unmade = 0

    def copying(self, slot: HostMemory, event: Any) -> None:
        """The slot's copies have begun; it's free again after `event`."""
        with self._changed:
            self._copying.append((slot, event))
            self._changed.notify()

    def give_back(self, slot: HostMemory) -> None:
        """The slot was not copied from after all."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def drain(self) -> None:
        """Wait for every copy: after it the slots' memory may go."""
        with self._changed:
            while self._copying:
                slot, event = self._copying.popleft()
                self._backend.sync(event)
                self._free.append(slot)

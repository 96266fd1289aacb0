"""Copies to a device straight from the page cache: parts of files are mapped, pinned, copied, and let go later.

No core moves these bytes; the driver pins them on one core about as quickly as four fill slots of a ring. So
one thread does this beside readers, and what it can't do goes through the ring.
"""

import logging
import mmap
import os
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.loader.memory.backend import Backend, HostMemory
from p2pcache.loader.plan.batches import Read
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.transfer.sinks import Target

log = logging.getLogger(__name__)

# Pinned at a time, and as a part of the machine's memory: nobody else can have it meanwhile. To let go takes a third
# of the time that pinning does, so it waits for the load's end.
HELD_BYTES, HELD_SHARE = 8 << 30, 16
# Of a read. More are copied sooner by way of a ring slot, where neighbours are one copy.
_MAX_PARTS = 16
_PAGE = mmap.PAGESIZE

Held = tuple[HostMemory, Any, int]  # memory, the event of its last copy, bytes


class CacheCopies:
    """Of one load. Thread-safe."""

    def __init__(self, source: DirectorySource, backend: Backend) -> None:
        """Pin nothing yet.

        Args:
            source: a complete model.
            backend: the device.
        """
        self._source = source
        self._backend = backend
        self._refused = False  # by the driver: it will refuse all files of this file system
        self._held: deque[Held] = deque()  # the oldest first
        self._held_bytes = 0
        memory = os.sysconf("SC_PHYS_PAGES") * _PAGE
        self._most_held_bytes = min(HELD_BYTES, memory // HELD_SHARE)
        self._lock = threading.Lock()

    def bring(self, read: Read, target: Target) -> bool:
        """Begin the copies of a read to the device; they run on when this returns.

        Args:
            read: which bytes.
            target: device memory of the batch's items.

        Returns:
            False: nothing was begun, and the read must go through the ring.

        Raises:
            P2PCacheError: the file can't be opened; the device failed.
        """
        if self._refused or not target.places or len(read.parts) > _MAX_PARTS:
            return False
        first, end = read.start // _PAGE * _PAGE, read.start + read.nbytes
        file = self._source.cached(read.path, read.start, end)
        if file is None:
            return False
        self._make_room(end - first)
        try:
            memory = self._backend.pin_file(file.fd, first, end - first)
        except NoSpace as error:
            self._refused = True
            log.debug("no copies straight from the page cache: %s", error)
            return False
        try:
            self._copy(memory, read, read.start - first, target)
        finally:  # perhaps some copies were begun
            with self._lock:
                self._held.append((memory, self._backend.record(), end - first))
                self._held_bytes += end - first
        self._source.count_read(read.nbytes)
        return True

    def _copy(self, memory: HostMemory, read: Read, at: int, target: Target) -> None:
        """Begin the copies; `at`: of the read in the memory."""
        if read.rows is not None:
            item, offset, length, stride, count = read.rows
            buffer, base = target.places[item]
            rows = HostMemory(memory.view[at:], memory.handle[at:])
            self._backend.copy_rows(rows, length, stride, count, buffer, base + offset)
            return
        for item, inside, length in read.parts:
            if item >= 0:
                buffer, base = target.places[item]
                self._backend.copy(memory, at, length, buffer, base + inside)
            at += length

    def _make_room(self, nbytes: int) -> None:
        """Let go of the oldest parts until as many bytes more may be held."""
        while True:
            with self._lock:
                if not self._held or self._held_bytes + nbytes <= self._most_held_bytes:
                    return
                oldest = self._held.popleft()
                self._held_bytes -= oldest[2]
            self._let_go(oldest)

    def _let_go(self, held: Held) -> None:
        self._backend.sync(held[1])

    def close(self) -> None:
        """Let go of all parts when their copies are done, in a thread of its own: nobody has to wait for it."""
        with self._lock:
            held, self._held = self._held, deque()
        if not held:
            return
        thread = threading.Thread(target=self._let_all_go, args=(held,), name="p2pcache-unpin")
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._let_all_go(held)

    def _let_all_go(self, held: deque[Held]) -> None:
        with suppress(P2PCacheError):  # a device that failed has no copies that run
            self._backend.enter()
            while held:
                self._let_go(held.popleft())

"""Single tensors to a device, through a small ring of pinned slots that an open model keeps."""

import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from p2pcache.loader.memory.backend import Backend
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import ALIGN_BYTES, MAX_ITEMS, Batch, MiB
from p2pcache.loader.source.base import Source
from p2pcache.loader.transfer.reading import read_staged
from p2pcache.loader.transfer.sinks import Target

LEAST_BYTES = MiB  # of a tensor that is worth it; a smaller one is copied as it is
SLOT_BYTES = 4 * MiB  # one tensor alone is cut into several reads, so that several threads bring it
_READERS = 8  # threads; callers that ask from several threads share them
_SLOTS = 16  # each reader fills one while others are copied from
_CUTS = 4  # reads of a tensor, unless they were smaller than `LEAST_BYTES` or larger than a slot


class DeviceReads:
    """Reads tensors one by one. Thread-safe; any thread may call `bring`."""

    def __init__(self, source: Source, backend: Backend) -> None:
        """Pin the first slot and start no thread yet.

        Args:
            source: where bytes come from.
            backend: the device.

        Raises:
            NoSpace: no memory can be pinned.
        """
        self._source = source
        self._backend = backend
        self._ring = Ring(backend, _SLOTS, SLOT_BYTES)
        self._threads = ThreadPoolExecutor(
            min(_READERS, max(2, os.cpu_count() or 2)), "p2pcache-open", initializer=backend.enter
        )

    def bring(self, batch: Batch) -> Any:
        """Read a tensor or slice whose bytes are available; the caller's stream waits for its copies.

        Args:
            batch: of this one item.

        Raises:
            NoSpace: the device has no room.
            P2PCacheError: the source's own error; the device failed.
        """
        (item,) = batch.items
        buffer = self._backend.alloc_device(batch.nbytes)
        target = Target(places=[(buffer, 0)])
        most = SLOT_BYTES - ALIGN_BYTES * MAX_ITEMS
        read_bytes = min(most, max(LEAST_BYTES, -(-item.nbytes // _CUTS)))
        # Reads end by themselves, so none is stopped: a tensor is whole or an error.
        begun = [
            self._threads.submit(
                read_staged, self._source, read, target, self._ring, self._backend, _never
            )
            for read in batch.reads(read_bytes, rows=True)
        ]
        wait(begun)
        for each in begun:
            each.result()
        self._backend.ready([buffer], self._backend.record_all())
        return self._backend.tensor(buffer, 0, item.nbytes, item.info.dtype, item.shape)

    def close(self) -> None:
        """End the threads, wait for copies, and unpin. More than once does no harm.

        Raises:
            P2PCacheError: the device failed.
        """
        self._threads.shutdown()
        self._ring.close()


def _never() -> bool:
    return False

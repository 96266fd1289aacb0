"""Bytes and records of what is removed, in the order that works on a full disk, too."""

from collections.abc import Collection

from p2pcache.io.blobs.blob_pool import Blobs
from p2pcache.io.disk.agent_db import Records
from p2pcache.io.disk.reserve_file import Spare


class Removal:
    """Removes blobs and forgets models. Callers hold the pool's `maintenance`."""

    def __init__(self, blobs: Blobs, records: Records, spare: Spare) -> None:
        self._blobs = blobs
        self._records = records
        self._spare = spare
        self.keep_spare()

    def model(self, digest: str) -> int:
        """Forget a model, and remove the blobs that no other model needs; returns the bytes of disk freed.

        Bytes go before names: on a full disk those can only be forgotten in the room that this makes.

        Raises:
            NoSpace: not even what is kept back for it was enough; the bytes are gone.
        """
        own = self._records.own_blobs(digest)
        freed = sum(self._blobs.remove(blob) for blob in own)
        self._records.remove_model(digest)
        self._forget(own)
        return freed

    def blobs(self, nameless: Collection[str]) -> int:
        """Remove blobs that no model needs; returns the bytes of disk freed."""
        freed = sum(self._blobs.remove(blob) for blob in nameless)
        self._forget(nameless)
        return freed

    def keep_spare(self) -> None:
        """Keep a little disk space back again, if there is any."""
        with self._blobs.lock:
            self._spare.keep()

    def _forget(self, gone: Collection[str]) -> None:
        self._records.remove_proofs(gone)
        self.keep_spare()

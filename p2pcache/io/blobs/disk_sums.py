"""Bytes of disk that each model takes, remembered: to look at each blob of a full cache takes a tenth of a second."""

from collections.abc import Collection, Mapping

from p2pcache.io.blobs.blob_pool import BlobPool


class DiskSums:
    """Of models all of whose blobs are published, which are nearly all, the sums are known until that changes."""

    def __init__(self, blobs: BlobPool) -> None:
        """Nothing was looked at."""
        self._blobs = blobs
        # By digest: of what they are the sums, the pool's count of losses then, and the sums.
        self._known: dict[
            str, tuple[Mapping[str, int], Collection[str], int, Mapping[str, int]]
        ] = {}

    def bytes_of(
        self,
        digest: str,
        needs: dict[str, int],
        shared: Collection[str],
        without: Mapping[str, int],
    ) -> Mapping[str, int]:
        """Bytes of disk of each shared blob of a model, and of all its others together, under its digest.

        Args:
            digest: of the model.
            needs: its blobs with their sizes, as the records have them.
            shared: those that other models need, too, as the records have them.
            without: bytes of its blobs that aren't counted.
        """
        lost = self._blobs.lost
        known = None if without else self._known.get(digest)
        if known is not None and known[0] is needs and known[1] is shared and known[2] == lost:
            return known[3]
        here = self._blobs.disk_bytes(needs)
        whole = here is needs and not without
        if without:
            here = {blob: max(0, size - without.get(blob, 0)) for blob, size in here.items()}
        sums = {blob: here[blob] for blob in shared if blob in here}
        sums[digest] = sum(here.values()) - sum(sums.values())
        if whole:
            self._known[digest] = needs, shared, lost, sums
        return sums

    def keep_only(self, digests: Collection[str]) -> None:
        """Forget the other models."""
        for digest in self._known.keys() - digests:
            self._known.pop(digest, None)

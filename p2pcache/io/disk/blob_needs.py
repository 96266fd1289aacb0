"""Which models of a cache need which blobs, in memory: a decision about a full cache must not read all rows again."""

from collections.abc import Iterable, Mapping

Needs = dict[str, int]
"""The blobs that one model needs, with their sizes."""


class BlobNeeds:
    """The table `model_blobs`. Callers serialise changes; a look is at copies.

    Invariants: `_sharers` has the models of each blob that several need, and no other blob. `_shared` has the same by
    model, and no empty set.
    """

    def __init__(self, needs: dict[str, Needs], shared: Iterable[tuple[str, str]]) -> None:
        """Take over what a table says.

        Args:
            needs: by the model's digest.
            shared: (blob, digest) of each blob that several models need, for each of them.
        """
        self._needs = needs
        self._sharers: dict[str, set[str]] = {}
        self._shared: dict[str, frozenset[str]] = {}
        self._share(shared)

    def all_needs(self) -> dict[str, Needs]:
        """By the model's digest. What one model needs is another object after each change."""
        return dict(self._needs)

    def all_shared(self) -> Mapping[str, frozenset[str]]:
        """The blobs of each model that another one needs, too; of models that have some."""
        return dict(self._shared)

    def put_needs(self, digest: str, needs: Needs, shared: Iterable[tuple[str, str]]) -> None:
        """A model needs these blobs from now on; `shared`: (blob, other digest) of those that others need, too."""
        self.drop_needs(digest)
        self._needs[digest] = needs
        self._share((blob, one) for blob, other in shared for one in (digest, other))

    def drop_needs(self, digest: str) -> None:
        """A model needs no blobs any more; one that isn't known is no error."""
        self._needs.pop(digest, None)
        for blob in self._shared.pop(digest, ()):
            left = self._sharers[blob]
            left.discard(digest)
            if len(left) == 1:
                del self._sharers[blob]
                self._unshare(left.pop(), blob)

    def _share(self, pairs: Iterable[tuple[str, str]]) -> None:
        changed: dict[str, set[str]] = {}
        for blob, digest in pairs:
            self._sharers.setdefault(blob, set()).add(digest)
            changed.setdefault(digest, set()).add(blob)
        for digest, blobs in changed.items():
            self._shared[digest] = self._shared.get(digest, frozenset()) | blobs

    def _unshare(self, digest: str, blob: str) -> None:
        left = self._shared[digest] - {blob}
        if left:
            self._shared[digest] = left
        else:
            del self._shared[digest]

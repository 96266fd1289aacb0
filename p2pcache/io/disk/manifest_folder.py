"""The manifests of a cache dir: `<hex>` of a model that may have bytes here, `<hex>.remote` of an evicted one.

To evict a model is one rename, which needs no space and no database: from then on the model counts as evicted, also
after a crash, and what is left of its bytes is deleted.
"""

from collections.abc import Collection

from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, digest_of
from p2pcache.ids import is_digest
from p2pcache.io.disk.disk import Disk, names, read_small

_REMOTE = ".remote"


class ManifestFolder:
    """The folder. Callers serialise (the pool's maintenance lock); `stored` may be called at any time."""

    def __init__(self, disk: Disk, folder: int) -> None:
        """Look at what is there, and drop what a crash left.

        Args:
            disk: how to touch the disk.
            folder: its descriptor.
        """
        self._disk = disk
        self._folder = folder
        found = names(folder)
        self.local = {name for name in found if is_digest(name)}
        self.remote = {
            digest for name in found
            if name.endswith(_REMOTE) and is_digest(digest := name.removesuffix(_REMOTE))
        }  # fmt: skip
        for name in found:
            if name.removesuffix(_REMOTE) not in self.local | self.remote:
                disk.unlink(folder, name)
        for digest in self.local & self.remote:  # it was on its way back
            self._forget_remote(digest)

    def stored(self, digest: str) -> bytes | None:
        """A manifest's bytes, of an evicted model, too; None if it isn't here (or was damaged)."""
        for name in (digest, digest + _REMOTE):
            data = read_small(self._folder, name, MAX_MANIFEST_BYTES)
            if data is not None and digest_of(data) == digest:
                return data
        return None

    def put(self, digest: str, data: bytes) -> None:
        """Store a manifest: its model may have bytes here from now on."""
        self._disk.replace_file(self._folder, digest, data)
        self.local.add(digest)

    def on_back(self, digest: str) -> None:
        """A model whose manifest was stored is in the records, too: it isn't evicted any more."""
        if digest in self.remote:
            self._forget_remote(digest)

    def evict(self, digest: str) -> None:
        """Note that a model is evicted. This is the step that can't be half done.

        Raises:
            OSError: the disk refused; nothing has changed.
        """
        self._disk.rename(self._folder, digest, self._folder, digest + _REMOTE)
        self._disk.sync(self._folder)
        self.local.discard(digest)
        self.remote.add(digest)

    def forget_manifests(self, digests: Collection[str]) -> None:
        """Forget manifests, of evicted models, too."""
        for digest in digests:
            self._disk.unlink(self._folder, digest)
            self.local.discard(digest)
            if digest in self.remote:
                self._forget_remote(digest)

    def _forget_remote(self, digest: str) -> None:
        self._disk.unlink(self._folder, digest + _REMOTE)
        self.remote.discard(digest)

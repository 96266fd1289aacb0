"""All blobs of one cache dir: found, opened, removed, kept in memory once each.

A blob is *missing*, *partial* (`partial/<hex>` and its bitmap `partial/<hex>.have`) or
*published* (`blobs/<hex>`, read-only, with a proof record). Models share blobs, so this is the
one place that knows what is proved of them.
"""

import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from p2pcache.core.format.manifest import File
from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import is_digest
from p2pcache.io.blobs import bitmap
from p2pcache.io.blobs.blob_file import BlobFile, FileCache, OpenFile
from p2pcache.io.disk.agent_db import Proof, Records, proof_of
from p2pcache.io.disk.cache_dir import Folders, cache_errors
from p2pcache.io.disk.disk import Disk, read_small
from p2pcache.io.disk.syscalls import data_regions

# What a crash can have kept from all bitmaps together: a flush begins after seconds or 256 MiB, and links are quick
# meanwhile. If more bytes seem to be there the file system tells no holes, and to hash them would take longer than it
# may bring.
MOST_UNFLUSHED_BYTES = 1 << 30


class BlobPool:
    """The pool of blobs. Thread-safe.

    Locks, in the order they may be taken: `maintenance` (long: flush, publish, remove, demote),
    then `lock` (short: bookkeeping, opens and renames, no data).
    """

    def __init__(self, root: Path, folders: Folders, disk: Disk, records: Records) -> None:
        self.root = root
        self.trouble: P2PCacheError | None = None
        self.refused = False
        self.folders = folders
        self.disk = disk
        self.records = records
        self.maintenance = threading.RLock()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.files = FileCache()
        self.proofs = records.proofs()
        self.before_demote: Callable[[str], None] = lambda _blob: None
        self.lost = 0  # how many published blobs that models need were lost, or became partial
        self._hope_bytes = MOST_UNFLUSHED_BYTES  # that may still be found, in all blobs together
        self._known: dict[str, BlobFile] = {}
        # A file with a proof record isn't looked at: that is done before its bytes are believed.
        here = set(_entries(folders.blobs))
        self._published = {name: proof[1] for name, proof in self.proofs.items() if name in here}
        unproved = _blobs_of(folders.blobs, here - self._published.keys())
        self._published |= {name: info.st_size for name, info in unproved}
        partial = _blobs_of(folders.partial, _entries(folders.partial))
        self._partial = {name: info.st_blocks * 512 for name, info in partial}

    # -- finding ---------------------------------------------------------------------------------

    def known(self) -> list[BlobFile]:
        """The blobs in memory."""
        with self.lock:
            return list(self._known.values())

    def attach(self, blob_id: str, file: File) -> BlobFile:
        """The one `BlobFile` of this id, loaded from disk the first time."""
        with self.lock:
            blob = self._known.get(blob_id)
            if blob is None:
                blob = self._known[blob_id] = self._load(blob_id, file)
            return blob

    def peek(self, blob_id: str, file: File) -> BlobFile:
        """As `attach`, but a blob that no model uses isn't kept in memory."""
        with self.lock:
            return self._known.get(blob_id) or self._load(blob_id, file)

    def detach(self, blob: BlobFile) -> None:
        """Drop a blob from memory when no model uses it."""
        with self.lock:
            if not blob.owners:
                self._known.pop(blob.id, None)
                self.files.drop(blob.id)
                if not blob.published and blob.on_disk:
                    self._partial[blob.id] = max(blob.allocated, blob.done_bytes)

    def is_published(self, blob_id: str) -> bool:
        """Whether `blobs/<hex>` is there."""
        with self.lock:
            return blob_id in self._published

    def on_published(self, blob: BlobFile, proof: Proof) -> None:
        """`blobs/<hex>` is there now, proved. Under the lock."""
        self.files.drop(blob.id)  # the next opener gets it read-only
        blob.published, blob.dirty = True, False
        self.proofs[blob.id] = proof
        self._published[blob.id] = blob.size
        self._partial.pop(blob.id, None)

    def on_demoted(self, blob: BlobFile) -> None:
        """`blobs/<hex>` lost its name, and a copy of it is `partial/<hex>`. Under the lock."""
        self.files.drop(blob.id)
        self._published.pop(blob.id, None)
        self.lost += 1
        self._partial[blob.id] = blob.size
        blob.published, blob.made = False, blob.made + 1
        self.changed.notify_all()

    def names(self) -> list[tuple[str, bool]]:
        """(id, published) of every blob on disk."""
        with self.lock:
            partial = set(self._partial) | {
                b.id for b in self._known.values() if b.on_disk and not b.published
            }
            return [(b, True) for b in self._published] + [(b, False) for b in sorted(partial)]

    def cached_bytes(self) -> int:
        """Bytes of model data on this disk."""
        with self.lock:
            total = sum(self._published.values())
            for blob in self._known.values():
                if not blob.published:
                    total += blob.done_bytes
            return total + sum(s for b, s in self._partial.items() if b not in self._known)

    def done_bytes(self, blobs: Mapping[str, int]) -> int:
        """Proved bytes of blobs, given with their sizes, also of those that aren't in memory."""
        done, unread = 0, list[str]()
        with self.lock:
            if blobs.keys() <= self._published.keys():  # nearly always, and no loop in Python
                return sum(blobs.values())
            for blob_id, size in blobs.items():
                if (blob := self._known.get(blob_id)) is not None:
                    done += blob.done_bytes
                elif blob_id in self._published:
                    done += size
                elif blob_id in self._partial:
                    unread.append(blob_id)
        for blob_id in unread:
            found = bitmap.decode(
                read_small(self.folders.partial, f"{blob_id}.have", bitmap.MAX_BITMAP_BYTES)
            )
            done += min(found.done_bytes, blobs[blob_id]) if found else 0
        return done

    def disk_bytes(self, blobs: dict[str, int]) -> dict[str, int]:
        """The blobs (with sizes) that have a file here, with the bytes of disk that it takes; the disk isn't asked."""
        found: dict[str, int] = {}
        with self.lock:
            if blobs.keys() <= self._published.keys():
                return blobs
            for blob_id in blobs:
                if (size := self._published.get(blob_id)) is not None:
                    found[blob_id] = size
                elif (blob := self._known.get(blob_id)) is not None:
                    if blob.on_disk:
                        found[blob_id] = max(blob.allocated, blob.done_bytes)
                elif (held := self._partial.get(blob_id)) is not None:
                    found[blob_id] = held
        return found

    def disk_sum(self, blobs: Iterable[BlobFile]) -> int:
        """Bytes of disk that these blobs take; the disk isn't asked."""
        with self.lock:
            return sum(
                b.size if b.published else max(b.allocated, b.done_bytes)
                for b in blobs
                if b.on_disk
            )

    def _load(self, blob_id: str, file: File) -> BlobFile:
        blob = BlobFile(blob_id, file)
        if blob_id in self._published:
            blob.published = blob.on_disk = True
            try:
                info = os.stat(blob_id, dir_fd=self.folders.blobs, follow_symlinks=False)
            except FileNotFoundError:
                self._published.pop(blob_id)
                self.lost += 1
                blob.published = blob.on_disk = False
                return blob
            if self.proofs.get(blob_id) == proof_of(blob_id, info) and info.st_size == blob.size:
                blob.set_all()
            else:
                blob.doubt()
        elif blob_id in self._partial:
            self._load_partial(blob)
        return blob

    def _load_partial(self, blob: BlobFile) -> None:
        try:
            info = os.stat(blob.id, dir_fd=self.folders.partial, follow_symlinks=False)
        except FileNotFoundError:
            self._partial.pop(blob.id, None)
            return
        blob.on_disk = True
        blob.allocated = info.st_blocks * 512
        found = bitmap.decode(
            read_small(self.folders.partial, f"{blob.id}.have", bitmap.MAX_BITMAP_BYTES)
        )
        if found is None or len(found.bits) != len(blob.bits) or info.st_size != blob.size:
            blob.doubt()  # torn or lost bitmap: prove the bytes rather than fetch them again
        else:
            blob.set_bits(found.bits)
            if not blob.whole:
                blob.hope_for(self._unflushed(blob))
        blob.dirty = blob.whole or found is None

    def _unflushed(self, blob: BlobFile) -> list[int]:
        """Positions with bytes of which the bitmap says nothing: what came between its last flush and a crash."""
        found: dict[int, None] = {}
        try:
            file = OpenFile(self.disk.open_read(self.folders.partial, blob.id))
            for begin, end in data_regions(file.fd, blob.size):
                first = blob.position(begin)
                for position in range(first, blob.position(min(end, blob.size) - 1) + 1):
                    if not blob.bits[position]:
                        found[position] = None
        except OSError:
            # What the bitmap believes is as good as before, and the rest can be fetched.
            return []
        nbytes = sum(blob.lengths[position] for position in found)
        if nbytes > self._hope_bytes:
            return []
        self._hope_bytes -= nbytes
        return list(found)

    # -- opening ---------------------------------------------------------------------------------

    def reader(self, blob: BlobFile, *, check: bool = True) -> OpenFile:
        """The blob's file, open for reading.

        Args:
            blob: which.
            check: compare a published file with its proof record when it's opened.

        Raises:
            NotFound: the file is gone or was changed; nothing of it is believed any more.
        """
        with self.lock:
            if not blob.published:
                return self.writer(blob)
            try:
                file = self.files.get(
                    blob.id, lambda: self.disk.open_read(self.folders.blobs, blob.id)
                )
            except OSError as error:
                self.on_deleted(blob)
                raise NotFound(f"blob {blob.id} can't be opened: {error.strerror}") from error
            if check and not self._unchanged(blob, file):
                self.files.drop(blob.id)
                blob.doubt()
                raise NotFound(f"blob {blob.id} was changed on disk; it will be proved again")
            return file

    def writer(self, blob: BlobFile) -> OpenFile:
        """The partial blob's file, open for reading and writing, created when missing."""
        assert not blob.published, "a published blob is never written"
        with self.lock, cache_errors(self, f"{self.root}/partial/{blob.id}"):
            try:
                file = self.files.get(blob.id, lambda: self._open_partial(blob))
            except FileNotFoundError:  # deleted behind our back
                self.on_deleted(blob)
                file = self.files.get(blob.id, lambda: self._open_partial(blob))
            if not blob.on_disk:
                self._create(blob, file)
            return file

    def _open_partial(self, blob: BlobFile) -> int:
        return self.disk.open_write(self.folders.partial, blob.id, create=not blob.on_disk)

    def _create(self, blob: BlobFile, file: OpenFile) -> None:
        try:
            if blob.reserved and self.disk.allocate(file.fd, blob.size):
                blob.allocated = blob.size
            else:
                self.disk.truncate(file.fd, blob.size)
        except OSError:
            self.files.drop(blob.id)
            self.disk.unlink(self.folders.partial, blob.id)
            raise
        blob.on_disk, blob.dirty, blob.made = True, True, blob.made + 1

    def adopt(self, blob: BlobFile, parent: int, name: str) -> bool:
        """Take a file, all of whose bytes were proved and are durable, as this blob's; it loses its old name.

        Args:
            blob: which; it is in memory.
            parent: the open directory in which the file lies, on this file system.
            name: of the file there.

        Returns:
            False: nothing was done, for the blob has a file already.
        """
        with self.lock, cache_errors(self, f"{self.root}/partial/{blob.id}"):
            if blob.on_disk or blob.published:
                return False
            # A bitmap without a blob is removed at the next start, a blob without a bitmap is proved again.
            self.write_bitmap(blob, bytearray(b"\x01") * len(blob.bits), blob.size)
            self.disk.rename(parent, name, self.folders.partial, blob.id)
            blob.on_disk, blob.allocated, blob.made = True, blob.size, blob.made + 1
            blob.gain(range(len(blob.bits)))
            return True

    def reserve(self, blob: BlobFile) -> None:
        """Give a partial blob its disk space now.

        Raises:
            NoSpace: the disk is full; a file that was there stays as it was.
        """
        with self.lock, cache_errors(self, f"{self.root}/partial/{blob.id}"):
            blob.reserved = True
            if blob.published or not blob.promise():
                return
            if not blob.on_disk:
                self.writer(blob)
            elif self.disk.allocate(self.writer(blob).fd, blob.size):
                blob.allocated = blob.size

    def _unchanged(self, blob: BlobFile, file: OpenFile) -> bool:
        info = os.fstat(file.fd)
        return self.proofs.get(blob.id) == proof_of(blob.id, info)

    def on_deleted(self, blob: BlobFile) -> None:
        """A blob's file is gone: forget all that was proved of it. Under the lock."""
        self.disk.unlink(self.folders.partial, f"{blob.id}.have")
        self._published.pop(blob.id, None)
        self.lost += 1
        blob.published = blob.on_disk = False
        blob.allocated = 0
        blob.lose(range(len(blob.bits)))
        blob.suspect = None
        self.changed.notify_all()

    # -- on disk ---------------------------------------------------------------------------------

    def write_bitmap(self, blob: BlobFile, bits: bytearray, done_bytes: int) -> None:
        """Replace a blob's bitmap file."""
        name = f"{blob.id}.have"
        self.disk.replace_file(self.folders.partial, name, bitmap.encode(bits, done_bytes))

    def held_bytes(self, blob_id: str) -> int:
        """Bytes of disk that a blob's file takes."""
        for folder in (self.folders.blobs, self.folders.partial):
            try:
                return os.stat(blob_id, dir_fd=folder, follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
        return 0

    def delete_files(self, blob_id: str) -> int:
        """Delete the files of a blob that no model needs; returns the bytes of disk that this frees."""
        freed, unseen = 0, list[str]()
        with self.lock:
            self.files.drop(blob_id)
            for folder in (self.folders.blobs, self.folders.partial):
                try:
                    info = os.stat(blob_id, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                unseen += self._put_away(folder, blob_id)
                freed += info.st_blocks * 512 if info.st_nlink == 1 else 0
            self.disk.unlink(self.folders.partial, f"{blob_id}.have")
            self._published.pop(blob_id, None)
            self._partial.pop(blob_id, None)
            self.proofs.pop(blob_id, None)
        for name in unseen:  # without the lock: a large file takes the kernel a second or two
            self.disk.unlink(self.folders.tmp, name)
        return freed

    def _put_away(self, folder: int, blob_id: str) -> list[str]:
        """Remove a blob's name; returns names in `tmp/` that are left to delete."""
        name = f"removed-{secrets.token_hex(8)}"
        try:
            self.disk.rename(folder, blob_id, self.folders.tmp, name)
        except OSError:  # a disk may be too full for one more name
            self.disk.unlink(folder, blob_id)
            return []
        return [name]


def _entries(folder: int) -> list[str]:
    return os.listdir(folder)


def _blobs_of(folder: int, found: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The names in a directory that are blobs, with what the disk says of them."""
    for name in filter(is_digest, found):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(info.st_mode):
            yield name, info

"""The directory of a model that still arrives: `models/.arriving/<manifest hex>/`.

manifest        its canonical bytes
blobs/<hex>     hard links to the blobs, whole or partial, of full size; unproved parts are holes or leftovers
ready           which runs may be read, one byte each; the agent writes it, loaders map it

    ready:  magic "P2PREDY1" | run count u32 | withdrawals u32 | one byte per run, 0 or 1

A run's byte is set when its bytes are proved and in the page cache. When a check fails it is cleared
before anything else happens, and `withdrawals` goes up. So if a run was ready before a read, and
`withdrawals` is the same after it, the read bytes are proved (as with a sequence lock).
"""

import logging
import mmap
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import MAX_CHUNKS, MAX_MANIFEST_BYTES, decode
from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import RunIndex, RunSet
from p2pcache.io.blobs.blob_file import BlobFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.cache_dir import Folders, cache_errors
from p2pcache.io.disk.disk import Disk, disk_errors, names, read_small

_log = logging.getLogger(__name__)
FOLDER = ".arriving"  # no namespace begins with a dot
_HEAD = struct.Struct("<8sII")
_MAGIC = b"P2PREDY1"  # the last character is the format's version
_WITHDRAWALS_AT = 12
_COUNTER_SPAN = 1 << 32
_OWNER_WRITES = 0o644  # readable through the link; `partial/` itself is closed to others


class ArrivingDir:
    """The agent's end. Calls: `build`, `begin`, `appear`; then all but `remove` under the pool's lock."""

    def __init__(self, blobs: BlobPool, layout: Layout, files: Sequence[BlobFile]) -> None:
        """Nothing is on disk before `build`."""
        self.path = f"{FOLDER}/{layout.digest}"
        self.users = 0  # loaders that are attached
        self._blobs = blobs
        self._layout = layout
        self._files = files
        self._made = [-1] * len(files)  # which making of its file each link shows
        self._temporary = f"arriving-{secrets.token_hex(8)}"
        self._withdrawals = 0
        self._fd = -1
        self._folder = -1

    def build(self, manifest: bytes) -> None:
        """Build the directory under `tmp/`, where no loader sees it.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused; nothing is left behind.
        """
        disk, folders = self._blobs.disk, self._blobs.folders
        with cache_errors(self._blobs, f"{self._blobs.root}/models/{self.path}"):
            root = disk.ensure_directory(folders.tmp, self._temporary, 0o755)
            try:
                self._put(root, "manifest", manifest)
                self._put(root, "ready", _HEAD.pack(_MAGIC, self._layout.run_count, 0)
                          + bytes(self._layout.run_count))  # fmt: skip
                self._fd = disk.open_write(root, "ready", create=False)
                self._folder = disk.ensure_directory(root, "blobs", 0o755)
                for number in range(len(self._files)):
                    with self._blobs.lock:  # of each, so that a proof never waits for all of them
                        self._link(number)
            except BaseException:
                self.close()
                disk.remove_tree(folders.tmp, self._temporary)
                raise
            finally:
                os.close(root)

    def begin(self, have: RunSet) -> None:
        """Mark the proved runs; from here on `ready` follows the pool. Under the pool's lock."""
        with cache_errors(self._blobs, f"{self._blobs.root}/models/{self.path}"):
            for number in range(len(self._files)):
                self.on_gained(number)
            flags = bytearray(self._layout.run_count)
            for run in bitset.members(have):
                flags[run] = 1
            self._blobs.disk.write_at(self._fd, bytes(flags), _HEAD.size)

    def appear(self) -> None:
        """Move the directory to its visible place."""
        disk, folders = self._blobs.disk, self._blobs.folders
        with cache_errors(self._blobs, f"{self._blobs.root}/models/{self.path}"):
            parent = disk.ensure_directory(folders.models, FOLDER, 0o755)
            try:
                disk.remove_tree(parent, self._layout.digest)
                disk.rename(folders.tmp, self._temporary, parent, self._layout.digest)
            finally:
                os.close(parent)

    def _put(self, folder: int, name: str, data: bytes) -> None:
        disk = self._blobs.disk
        disk.replace_file(folder, name, data, durable=False)
        fd = disk.open_write(folder, name, create=False)
        try:
            disk.chmod(fd, _OWNER_WRITES)
        finally:
            os.close(fd)

    def _link(self, number: int) -> None:
        blob, blobs = self._files[number], self._blobs
        if blob.published:
            source = blobs.folders.blobs
        else:
            source = blobs.folders.partial
            blobs.disk.chmod(blobs.writer(blob).fd, _OWNER_WRITES)
        temporary = f"{blob.id}.tmp"
        blobs.disk.link(source, blob.id, self._folder, temporary)
        blobs.disk.rename(self._folder, temporary, self._folder, blob.id)
        self._made[number] = blob.made

    def on_gained(self, number: int) -> None:
        """Chunks of blob `number` are proved: the link must show the file that they are in."""
        if self._fd >= 0 and self._made[number] != self._files[number].made:
            with self._or_silence():
                self._link(number)
                self._withdraw()  # loaders that have the old file open open the new one

    def on_ready(self, run: RunIndex) -> None:
        """A run is proved: its bytes may be read."""
        if self._fd >= 0:
            with self._or_silence():
                os.pwrite(self._fd, b"\x01", _HEAD.size + run)

    def on_lost(self, runs: RunSet) -> None:
        """Runs are proved no longer: withdraw them."""
        if self._fd >= 0 and runs:
            with self._or_silence():
                for run in bitset.members(runs):
                    os.pwrite(self._fd, b"\x00", _HEAD.size + run)
                self._withdraw()

    def _withdraw(self) -> None:
        self._withdrawals = (self._withdrawals + 1) % _COUNTER_SPAN
        os.pwrite(self._fd, struct.pack("<I", self._withdrawals), _WITHDRAWALS_AT)

    @contextmanager
    def _or_silence(self) -> Iterator[None]:
        """A disk error must not stop the pull: the directory is given up, and loaders wait for the published model."""
        try:
            yield
        except OSError as error:
            _log.warning("models/%s is given up: %s", self.path, error)
            with suppress(OSError):
                os.pwrite(self._fd, bytes(self._layout.run_count), _HEAD.size)
            self.close()

    def discard(self) -> None:
        """Remove the directory; files that loaders have open stay as they are."""
        self.close()
        disk = self._blobs.disk
        with cache_errors(self._blobs, f"{self._blobs.root}/models/{self.path}"):
            try:
                parent = disk.open_directory(self._blobs.folders.models, FOLDER)
            except FileNotFoundError:
                return
            try:
                disk.remove_tree(parent, self._layout.digest)
            finally:
                os.close(parent)

    def close(self) -> None:
        """Let go of the files; more than once does no harm."""
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1


def sweep(disk: Disk, folders: Folders) -> None:
    """At start: withdraw all runs in directories of a crashed agent, then remove them.

    A loader may still have them open. Its runs were proved, but this agent believes only its records
    and writes again chunks that they don't name.
    """
    try:
        parent = disk.open_directory(folders.models, FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        for name in names(parent):
            _silence(disk, parent, name)
            disk.remove_tree(parent, name)
    finally:
        os.close(parent)
    disk.remove_tree(folders.models, FOLDER)


def _silence(disk: Disk, parent: int, name: str) -> None:
    try:
        folder = disk.open_directory(parent, name)
    except OSError:
        return  # not ours, or half built: no loader reads it
    try:
        fd = disk.open_write(folder, "ready", create=False)
    except OSError:
        return
    finally:
        os.close(folder)
    try:
        head = os.pread(fd, _HEAD.size, 0)
        disk.write_at(fd, bytes(max(0, os.fstat(fd).st_size - _HEAD.size)), _HEAD.size)
        if len(head) == _HEAD.size:
            count = (_HEAD.unpack(head)[2] + 1) % _COUNTER_SPAN
            disk.write_at(fd, struct.pack("<I", count), _WITHDRAWALS_AT)
    finally:
        os.close(fd)


class Board:
    """A loader's end of one arriving directory. Thread-safe until `close`.

    The mapping stays readable when the directory is removed or the agent dies.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        """Open it.

        Args:
            folder: the arriving directory as this process sees it.
            digest: of the model that must be in it (hex).

        Raises:
            NotFound: it isn't there (or not visible to this process).
            InvalidManifest, P2PCacheError: it isn't that model's, or was written by another release.
        """
        with disk_errors(str(folder)):
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                data = read_small(self._folder, "manifest", MAX_MANIFEST_BYTES)
                if data is None:
                    raise NotFound(
                        f"{folder}: the manifest isn't there; is it the agent's directory?"
                    )
                self.layout = Layout(decode(data, digest), digest)
                self._map = self._open_ready(folder)
            except BaseException:
                os.close(self._folder)
                raise

    def _open_ready(self, folder: Path) -> mmap.mmap:
        fd = os.open(
            "ready", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._folder
        )
        try:
            head = os.pread(fd, _HEAD.size, 0)
            size = os.fstat(fd).st_size
            count = self.layout.run_count
            good = len(head) == _HEAD.size and _HEAD.unpack(head)[:2] == (_MAGIC, count)
            if not good or size != _HEAD.size + count or count > MAX_CHUNKS:
                raise P2PCacheError(
                    f"{folder}/ready isn't of a kind that this release reads; "
                    "use the same release for agent and loader"
                )
            return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)

    @property
    def withdrawals(self) -> int:
        """A counter that changes at each withdrawal."""
        return int.from_bytes(self._map[_WITHDRAWALS_AT : _HEAD.size], "little")

    def is_ready(self, run: RunIndex) -> bool:
        """Whether the run's bytes are proved and may be read."""
        return self._map[_HEAD.size + run] == 1

    def ready_runs(self) -> int:
        """How many runs are ready."""
        return self._map[_HEAD.size :].count(1)

    def open_blob(self, number: int) -> int:
        """Open one of the layout's blobs for reading; the caller closes it.

        It may be shorter than in the manifest, if somebody else cut it: no run beyond its end stays ready.

        Raises:
            NotFound: the directory was removed meanwhile.
        """
        blob = self.layout.blobs[number]
        with disk_errors(f"arriving file {blob.id}"):
            return os.open(
                f"blobs/{blob.id}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
            )

    def close(self) -> None:
        """Let go of the mapping."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
            self._map.close()

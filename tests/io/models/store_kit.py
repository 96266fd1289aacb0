"""Small models in memory, and how to pour them into a store."""

import os
import random
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from blake3 import blake3

from p2pcache.core.format.chunking import cut
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, encode, make_file, make_manifest
from p2pcache.ids import Ref
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.store import Store

REF = Ref.parse("team/llama:v1")


@contextmanager
def small_file_system(place: Path, size_bytes: int, inodes: int = 0) -> Iterator[Path]:
    """One of its own, mounted at `place`, for `inodes` files (0: any number); skips where that isn't allowed."""
    place.mkdir()
    how = f"size={size_bytes},nr_inodes={inodes}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", how, "small", str(place)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Model:
    """Files with their manifest and layout; chunks are `chunk_bytes` long, or as format v1 cuts."""

    def __init__(self, files: Mapping[str, bytes], chunk_bytes: int | None = None) -> None:
        self.files = files
        manifest = make_manifest(
            make_file(path, _chunks(data, chunk_bytes)) for path, data in files.items()
        )
        self.encoded = encode(manifest)
        self.layout = Layout(manifest)
        self.digest = self.layout.digest
        self._of_blob = {self.layout.blob_of_file[p]: data for p, data in files.items()}

    def chunk(self, chunk: int) -> bytes:
        """The true bytes of a chunk."""
        place = self.layout.first_place(chunk)
        return self._of_blob[place.blob][place.offset : place.offset + self.layout.lengths[chunk]]

    def put(self, store: ModelStore, chunk: int) -> bool:
        """Write one chunk as a peer connection would."""
        writer = store.begin(chunk)
        if writer is None:
            return True
        data = memoryview(self.chunk(chunk))
        half = len(data) // 2
        writer.put(half, data[half:])
        writer.update(data[:half])
        writer.put(0, data[:half])
        writer.update(data[half:])
        return writer.finish()

    def fill(self, store: ModelStore, chunks: Iterable[int] | None = None) -> None:
        """Write these chunks (all that are missing)."""
        wanted = range(self.layout.chunk_count) if chunks is None else chunks
        assert all(self.put(store, chunk) for chunk in wanted)

    def add(self, store: Store, *, reserve: bool = True) -> ModelStore:
        """Make the model known to a store."""
        return store.add_model(self.layout, self.encoded, reserve=reserve)

    def assert_proved(self, store: ModelStore) -> None:
        """Rule number one: whatever the store calls proved is the true bytes."""
        for chunk in range(self.layout.chunk_count):
            if store.has_chunk(chunk):
                assert read_chunk(store, chunk) == self.chunk(chunk)

    def assert_tree(self, root: Path) -> None:
        """The directory holds exactly this model."""
        found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        assert found == set(self.files)
        assert all((root / p).read_bytes() == data for p, data in self.files.items())


def model(seed: int = 0, *, chunk_bytes: int = 1000) -> Model:
    """A few files: several chunks, one chunk, equal files, an empty one, a repeated chunk."""
    dice = random.Random(seed)
    repeated = dice.randbytes(chunk_bytes)
    return Model(
        {
            "config.json": b'{"seed": %d}' % seed,
            "empty": b"",
            "sub/dir/tokens.txt": dice.randbytes(1500),
            "sub/same.txt": b"same",
            "sub/same2.txt": b"same",
            "weights-1.bin": dice.randbytes(6200),
            "weights-2.bin": repeated + dice.randbytes(2 * chunk_bytes) + repeated,
        },
        chunk_bytes,
    )


def open_store(path: Path, disk: Disk | None = None) -> Store:
    """A store that leaves no space free."""
    return Store.open(path / "cache", min_free_bytes=0, disk=disk)


def read_chunk(store: ModelStore, chunk: int) -> bytes:
    """What a peer would be served."""
    source = store.source(chunk)
    return os.pread(source.fd, source.length, source.offset)


def open_fds() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def held_deleted(root: Path) -> list[str]:
    """Files below `root` that this process has open though they are deleted: lost space."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(fd.readlink()))
    return [path for path in found if path.endswith(" (deleted)") and str(root) in path]


def _chunks(data: bytes, chunk_bytes: int | None) -> list[Chunk]:
    lengths = cut(len(data))
    if chunk_bytes is not None:
        full, rest = divmod(len(data), chunk_bytes)
        lengths = [chunk_bytes] * full + [rest] * bool(rest)
    found, offset = [], 0
    for length in lengths:
        piece = data[offset : offset + length]
        found.append(Chunk(length, blake3(piece).digest()))
        offset += length
    return found

"""The swarm's view of a manifest: distinct chunks, the blobs they lie in, and runs of chunks.

A layout follows from the manifest alone, so all nodes agree on every index without a message.

- A *chunk index* counts distinct digests in order of first appearance. A chunk that occurs in
  several places is fetched once and copied to the others.
- A *run* is the swarm's unit, the piece of BitTorrent (BEP 3): consecutive chunks, up to one nominal
  chunk of bytes together. One large chunk is a run; ten thousand small files are a few hundred runs.
  Leases, requests and have-sets are sets of runs.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.format.chunking import nominal_chunk_bytes
from p2pcache.core.format.manifest import Manifest, digest_of, encode
from p2pcache.errors import InvalidManifest
from p2pcache.ids import DIGEST_BYTES, RunIndex, RunSet


class Place(NamedTuple):
    """Where a chunk lies: a blob (index into `Layout.blobs`) and a byte offset in it."""

    blob: int
    offset: int


class Blob(NamedTuple):
    """One distinct file content."""

    id: str  # hex
    size: int
    chunks: "array[int]"  # chunk indices in file order


class Layout:
    """Index tables of one manifest, built once for a model and process. Its attributes are never changed."""

    def __init__(self, manifest: Manifest, digest: str | None = None) -> None:
        """Build the tables; `digest` (hex) is computed when not given."""
        self.manifest = manifest
        self.digest = digest if digest is not None else digest_of(encode(manifest))
        self.blobs: list[Blob] = []
        self.blob_of_file: dict[str, int] = {}  # path -> blob index
        self.blob_of_id: dict[str, int] = {}  # blob id -> blob index
        self.lengths: array[int] = array("I")  # per chunk
        self._digests = bytearray()  # 32 bytes per chunk
        self._first_blob: array[int] = array("I")  # per chunk: its first place, packed
        self._first_offset: array[int] = array("Q")
        self._more: dict[int, list[Place]] = {}  # chunks with further places
        self._index(manifest)
        self.total_bytes = sum(self.lengths)  # each distinct chunk once
        self.run_bytes: array[int] = array("I")
        self._run_first: array[int] = array("I")  # first chunk of each run
        self._cut_runs(nominal_chunk_bytes(manifest.size_bytes))

    @property
    def chunk_count(self) -> int:
        """Distinct chunks."""
        return len(self.lengths)

    @property
    def run_count(self) -> int:
        """Runs: the length of every have-set of this model."""
        return len(self.run_bytes)

    def digest_of_chunk(self, chunk: int) -> bytes:
        """BLAKE3 digest (32 bytes) that proves the chunk."""
        return bytes(self._digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES])

    def first_place(self, chunk: int) -> Place:
        """The chunk's first place."""
        return Place(self._first_blob[chunk], self._first_offset[chunk])

    def places(self, chunk: int) -> Iterator[Place]:
        """Every place of the chunk, the first one first. There may be a million."""
        yield self.first_place(chunk)
        yield from self._more.get(chunk, ())

    def run_chunks(self, run: RunIndex) -> range:
        """Chunk indices of a run."""
        last = run + 1 == len(self._run_first)
        return range(self._run_first[run], self.chunk_count if last else self._run_first[run + 1])

    def run_of(self, chunk: int) -> RunIndex:
        """The run that a chunk belongs to."""
        return bisect_right(self._run_first, chunk) - 1

    def bytes_of(self, runs: RunSet) -> int:
        """Bytes of these runs."""
        return sum(self.run_bytes[run] for run in bitset.members(runs))

    def _index(self, manifest: Manifest) -> None:
        by_digest: dict[bytes, int] = {}
        sha256: list[bytes] = []  # of each blob
        for file in manifest.files:
            blob_id = file.blob_id
            if blob_id in self.blob_of_id:
                number = self.blob_of_file[file.path] = self.blob_of_id[blob_id]
                if file.sha256 and sha256[number] and file.sha256 != sha256[number]:
                    raise InvalidManifest("one blob is listed with two SHA-256")
                sha256[number] = sha256[number] or file.sha256
                continue
            sha256.append(file.sha256)
            number = self.blob_of_id[blob_id] = self.blob_of_file[file.path] = len(self.blobs)
            chunks: array[int] = array("I")
            offset = 0
            for length, digest in file.chunks:
                chunk = by_digest.get(digest)
                if chunk is None:
                    chunk = by_digest[digest] = len(self.lengths)
                    self.lengths.append(length)
                    self._digests += digest
                    self._first_blob.append(number)
                    self._first_offset.append(offset)
                else:
                    if self.lengths[chunk] != length:
                        raise InvalidManifest("one chunk digest is listed with two lengths")
                    self._more.setdefault(chunk, []).append(Place(number, offset))
                chunks.append(chunk)
                offset += length
            self.blobs.append(Blob(blob_id, file.size, chunks))

    def _cut_runs(self, limit_bytes: int) -> None:
        size = 0
        for chunk, length in enumerate(self.lengths):
            if size and size + length <= limit_bytes:
                size += length
                self.run_bytes[-1] = size
                continue
            self._run_first.append(chunk)
            self.run_bytes.append(length)
            size = length

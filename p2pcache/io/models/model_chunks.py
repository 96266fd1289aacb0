"""The chunks of one model on this node: which are proved, where to read them, how to add more."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File
from p2pcache.core.pool.eviction import Limits
from p2pcache.errors import NotFound
from p2pcache.ids import Ref, RunIndex, RunSet
from p2pcache.io.blobs import proving, reservation
from p2pcache.io.blobs.blob_file import BlobFile, ChunkSource
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import ChunkWriter, Writers
from p2pcache.io.blobs.flush import flush_blobs
from p2pcache.io.models.arriving_dir import ArrivingDir
from p2pcache.io.models.local_copy import copy_local, fill_from
from p2pcache.io.models.verification import verify


class Home(Protocol):
    """The store that a model belongs to, as the model uses it."""

    min_free_bytes: int
    limits: Limits

    def publish(
        self, model: "ModelStore", ref: Ref | None, generation: int | None, *, back: bool
    ) -> str:
        """Make a whole model's tree and tag appear."""

    def other_files(self, digest: str, chunks: set[str]) -> Iterator[File]:
        """The files of other models here that have one of these chunks (hex)."""


class ModelStore:
    """One model's chunks. Thread-safe; calls that read or write data block.

    Invariants (under the pool's lock): `_open[c]` counts the places of chunk c that aren't proved in
    their blobs; `_have[c]` is 1 exactly when that is 0; `_run_left[r]` counts the zeros of run r; bit r of
    `_have_runs` is set exactly when `_run_left[r]` is 0.
    """

    def __init__(self, home: Home, blobs: BlobPool, writers: Writers, layout: Layout) -> None:
        self.layout = layout
        self.digest = layout.digest
        self.pins = 0
        self.closed = False  # removed, or the store ends
        self.on_lost: Callable[[RunSet], None] | None = None
        """Called on any thread with runs whose proof turned out wrong."""
        self.on_ready: Callable[[], None] | None = None
        """Called on any thread when `arriving` shows more. Must not block."""
        self.arriving: ArrivingDir | None = None
        self._home = home
        self._blobs = blobs
        self._writers = writers
        self._files: list[BlobFile] = []
        with blobs.lock:
            self._attach()
            self._count()

    def _attach(self) -> None:
        by_number: dict[int, File] = {}
        for file in self.layout.manifest.files:
            by_number.setdefault(self.layout.blob_of_file[file.path], file)
        for number, known in enumerate(self.layout.blobs):
            blob = self._blobs.attach(known.id, by_number[number])
            blob.owners.append((self, number))
            self._files.append(blob)
            if blob.whole and not blob.published:
                blob.dirty = True  # an empty file has no chunks: the next flush creates it

    def _count(self) -> None:
        layout = self.layout
        have = self._have = bytearray(b"\x01") * layout.chunk_count
        self._open = array("I", bytes(4 * layout.chunk_count))
        for blob, known in zip(self._files, layout.blobs, strict=True):
            if not blob.whole:
                for position, bit in enumerate(blob.bits):
                    if not bit:
                        have[known.chunks[position]] = 0
                        self._open[known.chunks[position]] += 1
        self._missing = have.count(0)
        self._bytes_done = sum(n for n, bit in zip(layout.lengths, have, strict=True) if bit)
        self._run_left = array("I", bytes(4 * layout.run_count))
        bits = bytearray((layout.run_count + 7) // 8)
        for run in range(layout.run_count):
            chunks = layout.run_chunks(run)
            self._run_left[run] = left = have.count(0, chunks.start, chunks.stop)
            if not left:
                bits[run >> 3] |= 1 << (run & 7)
        self._have_runs = int.from_bytes(bits, "little")

    # -- what is proved --------------------------------------------------------------------------

    def have_runs(self) -> RunSet:
        """The proved runs."""
        return self._have_runs

    def has_chunk(self, chunk: int) -> bool:
        """Whether the chunk is proved."""
        return bool(self._have[chunk])

    def missing_chunks(self, run: RunIndex) -> list[int]:
        """The run's chunks that aren't proved."""
        return [c for c in self.layout.run_chunks(run) if not self._have[c]]

    @property
    def complete(self) -> bool:
        """Whether every chunk is proved."""
        return self._missing == 0

    @property
    def bytes_done(self) -> int:
        """Proved bytes, each distinct chunk once (of `layout.total_bytes`)."""
        return self._bytes_done

    @property
    def files(self) -> list[BlobFile]:
        """The model's blobs, in the layout's order."""
        return self._files

    def source(self, chunk: int) -> ChunkSource:
        """Where the chunk's bytes can be read; hold the answer while reading.

        Raises:
            NotFound: it isn't proved, or its file was changed by somebody else.
        """
        place = self.layout.first_place(chunk)
        with self._blobs.lock:
            if self.closed or not self._have[chunk]:
                raise NotFound(f"chunk {chunk} of {self.digest} isn't here")
            file = self._blobs.reader(self._files[place.blob])
            return ChunkSource(file.fd, place.offset, self.layout.lengths[chunk], file)

    def unreadable(self, chunk: int) -> bool:
        """Believe nothing of a chunk's file, which the disk failed to read; False: nothing was believed already."""
        return proving.doubt_unreadable(
            self._blobs, self._files[self.layout.first_place(chunk).blob]
        )

    def open_places(self, chunk: int) -> Iterator[tuple[BlobFile, int]]:
        """Places (blob, position) of the chunk that aren't proved. Under the pool's lock, to the last one."""
        for place in self.layout.places(chunk) if self._open[chunk] else ():
            blob = self._files[place.blob]
            if not blob.whole:
                position = blob.position(place.offset)
                if not blob.bits[position]:
                    yield blob, position

    def blobs_with(self, runs: RunSet) -> dict[int, list[int]]:
        """The positions of these runs' chunks, by the number of the blob that has them."""
        found: dict[int, list[int]] = {}
        for run in bitset.members(runs):
            for chunk in self.layout.run_chunks(run):
                for place in self.layout.places(chunk):
                    position = self._files[place.blob].position(place.offset)
                    found.setdefault(place.blob, []).append(position)
        return found

    def bytes_beside(self, number: int, positions: Iterable[int]) -> int:
        """Proved bytes of a blob beside these positions, which are proved.

        Args:
            number: of the blob.
            positions: in it.
        """
        blob = self._files[number]
        return blob.done_bytes - sum(map(blob.lengths.__getitem__, positions))

    def dear_to_keep(self, going: RunSet, may_go: RunSet) -> RunSet:
        """The rest of those published files of which copies would together write more than is freed, the largest first.

        Args:
            going: runs that go.
            may_go: those that could; a file with others is copied all the same.
        """
        rest: RunSet = 0
        freed = 0
        copies: list[tuple[int, RunSet]] = []  # bytes that stay of a file, and their runs
        for number, positions in self.blobs_with(going & self._have_runs).items():
            blob, chunks = self._files[number], self.layout.blobs[number].chunks
            stay = self.bytes_beside(number, positions)
            freed += blob.done_bytes - stay
            left = bitset.of(set(map(self.layout.run_of, chunks))) & self._have_runs & ~going
            if blob.published and not left & ~may_go:
                copies.append((stay, left))
        written = sum(stay for stay, _ in copies)
        for stay, left in sorted(copies, reverse=True):
            if written <= freed:
                break
            rest |= left
            written, freed = written - stay, freed + stay
        return rest

    def check_space(self, nbytes: int) -> None:
        """Check that so many more bytes fit beside what others were promised.

        Raises:
            NoSpace: they don't.
        """
        home = self._home
        reservation.check(self._blobs, nbytes, home.min_free_bytes, home.limits.quota_bytes)

    # -- filling ---------------------------------------------------------------------------------

    def begin(self, chunk: int) -> ChunkWriter | None:
        """Start to write a chunk; None if it's proved already.

        Raises:
            NotFound: the model was removed.
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        while (place := self._first_suspect(chunk)) is not None:
            blob, position = place
            proving.prove_suspects(self._blobs, blob, [position])
        with self._blobs.lock:
            if self.closed:
                raise NotFound(f"model {self.digest} was removed from this cache")
            return self._writers.begin(self, chunk)

    def _first_suspect(self, chunk: int) -> tuple[BlobFile, int] | None:
        """The chunk's first place that isn't proved, if it's to be proved by reading."""
        with self._blobs.lock:
            blob, position = next(self.open_places(chunk), (None, 0))
            if blob is None or blob.suspect is None or not blob.suspect[position]:
                return None
            return blob, position

    def adopt(self, number: int, parent: int, name: str) -> None:
        """Take a file, all of whose bytes were proved and are durable, as one of our blobs.

        Args:
            number: of the blob.
            parent: the open directory in which the file lies, on this cache's file system.
            name: of the file there; it is gone afterwards, or was copied.

        Raises:
            IntegrityError: it isn't what it was.
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        if not self._blobs.adopt(self._files[number], parent, name):
            fill_from(self, self._blobs, number, parent, name)

    def copy_local(self) -> RunSet:
        """Prove what this disk has already: suspect bytes, and chunks that lie in other blobs.

        Returns:
            The runs that became complete.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        return copy_local(self, self._blobs, partial(self._home.other_files, self.digest))

    def flush(self) -> None:
        """Make all proved chunks durable: data first, then the bitmaps; whole blobs are published.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused; flush again later.
        """
        if not self.closed:
            flush_blobs(self._blobs, self._files)

    def show_arriving(self, manifest: bytes) -> ArrivingDir:
        """Show loaders what is proved while the rest arrives; again is no error. One call at a time.

        Raises:
            NotFound: the model was removed.
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        shown = self.arriving
        if shown is None:
            shown = ArrivingDir(self._blobs, self.layout, self._files)
            shown.build(manifest)
            with self._blobs.lock:
                if self.closed:
                    shown.close()
                    raise NotFound(f"model {self.digest} was removed from this cache")
                shown.begin(self._have_runs)
                self.arriving = shown
            shown.appear()
        return shown

    def hide_arriving(self) -> None:
        """Remove the arriving directory; loaders keep their open files."""
        with self._blobs.lock:
            shown, self.arriving = self.arriving, None
        if shown is not None:
            shown.discard()

    def publish(self, ref: Ref | None = None, generation: int | None = None, *, back: bool = True) -> str:  # fmt: skip
        """Make the whole model's tree appear, and its tag if there's a generation: `back` from a higher one, too.

        Returns:
            The tree's path relative to the models directory ("" without a ref).

        Raises:
            P2PCacheError: a chunk is missing, or the disk refused.
        """
        return self._home.publish(self, ref, generation, back=back)

    # -- checking --------------------------------------------------------------------------------

    def recheck(self) -> bool:
        """Compare each file with its proof record, before a path is handed out.

        A file that was changed is believed no longer; `copy_local` proves it again.

        Returns:
            Whether every chunk is still proved.
        """
        for blob in self._files:
            proving.recheck(self._blobs, blob)
        return self.complete

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[int]:
        """Hash every proved chunk again; bad ones are believed no longer.

        Args:
            progress: called with (bytes hashed, bytes to hash).

        Returns:
            The bad chunks, ascending.
        """
        return verify(self._blobs, self.layout, self._files, progress)

    def pin(self) -> None:
        """Mark the model as in use: `rm` and `prune` leave it alone until `unpin`."""
        with self._blobs.lock:
            self.pins += 1

    def unpin(self) -> None:
        """Undo one `pin`."""
        with self._blobs.lock:
            assert self.pins, "unpin without pin"
            self.pins -= 1

    def close(self) -> None:
        """Stop writers and detach from the blobs, without a flush."""
        with self._blobs.lock:
            self.closed = True
            if self.arriving is not None:
                self.arriving.close()
            self._writers.stop(self)
            for number, blob in enumerate(self._files):
                blob.owners.remove((self, number))
                self._blobs.detach(blob)
            self._have_runs = 0

    # -- calls of the pool, under its lock -------------------------------------------------------

    def blob_gained(self, number: int, positions: Iterable[int]) -> None:
        """Positions of one of our blobs, each once, are proved now and weren't before."""
        chunks = self.layout.blobs[number].chunks
        ready: list[RunIndex] = []
        if self.arriving is not None:
            self.arriving.on_gained(number)
        for chunk in map(chunks.__getitem__, positions):
            self._open[chunk] -= 1
            if self._open[chunk]:
                continue
            self._have[chunk] = 1
            self._missing -= 1
            self._bytes_done += self.layout.lengths[chunk]
            run = self.layout.run_of(chunk)
            self._run_left[run] -= 1
            if not self._run_left[run]:
                ready.append(run)
                if self.arriving is not None:
                    self.arriving.on_ready(run)
        if ready:
            # Last: a thread without the lock that sees it may tell a loader.
            self._have_runs |= bitset.of(ready)
            if self.on_ready is not None:
                self.on_ready()

    def blob_lost(self, number: int, positions: Iterable[int]) -> None:
        """Positions of one of our blobs, each once, are proved no longer."""
        chunks = self.layout.blobs[number].chunks
        runs: set[RunIndex] = set()
        for chunk in map(chunks.__getitem__, positions):
            self._open[chunk] += 1
            if not self._have[chunk]:
                continue
            self._have[chunk] = 0
            self._missing += 1
            self._bytes_done -= self.layout.lengths[chunk]
            run = self.layout.run_of(chunk)
            self._run_left[run] += 1
            runs.add(run)
        lost = self._have_runs & bitset.of(runs)
        self._have_runs &= ~lost
        if lost and self.arriving is not None:
            self.arriving.on_lost(lost)
        if lost and self.on_lost is not None:
            self.on_lost(lost)

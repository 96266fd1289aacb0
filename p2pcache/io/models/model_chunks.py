"""The chunks of one model on this node: what is proved, where to read it, how to add to it."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, File
from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.blobs.blob_file import BlobFile, ChunkSource
from p2pcache.io.blobs.blob_pool import Blobs
from p2pcache.io.blobs.chunk_writer import ChunkWriter, Writers
from p2pcache.io.blobs.flush import flush_blobs
from p2pcache.io.disk.region_hash import proves
from p2pcache.io.models.arriving_dir import Arriving

VERIFY_THREADS = 2  # BLAKE3 scales with threads, disks with two readers; the rest is for serving
_VERIFY_BYTES = 64 << 20  # a unit of work: progress several times a second


class Home(Protocol):
    """What a model asks of the store it lives in."""

    def publish(self, model: "ModelStore", ref: Ref | None, generation: int | None) -> str:
        """Make a whole model's tree and tag appear."""

    def other_files(self, digest: str) -> Iterator[File]:
        """The files of every other model known here."""


class ModelStore:
    """One model's chunks. Thread-safe; calls that read or write data block.

    Invariants (under the pool's lock): `_have[c]` is 1 exactly when each place of chunk c is
    proved in its blob; `_run_left[r]` counts the zeros of run r; bit r of `_have_runs` is set
    exactly when `_run_left[r]` is 0.
    """

    def __init__(self, home: Home, blobs: Blobs, writers: Writers, layout: Layout) -> None:
        self.layout = layout
        self.digest = layout.digest
        self.pins = 0
        self.closed = False  # removed, or the store ends
        self.on_lost: Callable[[int], None] | None = None
        """Called with the runs (bits) whose proof turned out wrong, on whatever thread found it."""
        self.on_ready: Callable[[], None] | None = None
        """Called when `arriving` shows more, on whatever thread brought it. Must not block."""
        self.arriving: Arriving | None = None
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
                blob.dirty = True  # an empty file has nothing to fetch: the next flush makes it

    def _count(self) -> None:
        layout = self.layout
        have = self._have = bytearray(b"\x01") * layout.chunk_count
        for blob, known in zip(self._files, layout.blobs, strict=True):
            if not blob.whole:
                for position, bit in enumerate(blob.bits):
                    if not bit:
                        have[known.chunks[position]] = 0
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

    # What is here

    def have_runs(self) -> int:
        """The proved runs, as bits."""
        return self._have_runs

    def has_chunk(self, chunk: int) -> bool:
        """Whether the chunk is proved."""
        return bool(self._have[chunk])

    def missing_chunks(self, run: int) -> list[int]:
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
        """Where the chunk's bytes can be read; hold the answer while you read.

        Raises:
            NotFound: it isn't proved, or its file was changed behind our back.
        """
        place = self.layout.places(chunk)[0]
        with self._blobs.lock:
            if self.closed or not self._have[chunk]:
                raise NotFound(f"chunk {chunk} of {self.digest} isn't here")
            file = self._blobs.reader(self._files[place.blob])
            return ChunkSource(file.fd, place.offset, self.layout.lengths[chunk], file)

    def unreadable(self, chunk: int) -> bool:
        """The disk failed to read a proved chunk: its file is offered to nobody before it is proved again."""
        return self._blobs.unreadable(self._files[self.layout.places(chunk)[0].blob])

    def open_places(self, chunk: int) -> list[tuple[BlobFile, int]]:
        """Places (blob, position) of the chunk that aren't proved. Under the pool's lock."""
        found = []
        for place in self.layout.places(chunk):
            blob = self._files[place.blob]
            position = blob.position(place.offset)
            if not blob.bits[position]:
                found.append((blob, position))
        return found

    # Adding to it

    def begin(self, chunk: int) -> ChunkWriter | None:
        """Start to write a chunk; None if it's proved already.

        Raises:
            NotFound: the model was removed.
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        with self._blobs.lock:
            suspects = [
                (b, p) for b, p in self.open_places(chunk) if b.suspect is not None and b.suspect[p]
            ]
        for blob, position in suspects:
            self._blobs.settle(blob, [position])
        with self._blobs.lock:
            if self.closed:
                raise NotFound(f"model {self.digest} was removed from this cache")
            return self._writers.begin(self, chunk)

    def copy_local(self) -> int:
        """Prove what this disk has already: suspect bytes, and chunks that lie in other blobs.

        Returns:
            The runs that are complete now and weren't before, as bits.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        before = self._have_runs
        for blob in self._files:
            if blob.suspect is not None:
                self._blobs.settle(blob, blob.suspects())
        if not self._missing:
            return self._have_runs & ~before
        self._copy_within()
        wanted = {
            Chunk(self.layout.lengths[c], self.layout.digest_of_chunk(c)): c
            for c, bit in enumerate(self._have)
            if not bit
        }
        own = {b.id for b in self._files}
        for file in self._home.other_files(self.digest) if wanted else ():
            hits = [p for p, c in enumerate(file.chunks) if c in wanted]
            if hits and file.blob_id not in own:
                blob = self._blobs.peek(file.blob_id, file)
                for position in hits:
                    key = Chunk(blob.lengths[position], blob.digest(position))
                    if key in wanted and self._copy(blob, position, wanted[key]):
                        del wanted[key]
        return self._have_runs & ~before

    def _copy_within(self) -> None:
        for chunk, bit in enumerate(self._have):
            places = self.layout.places(chunk)
            if bit or len(places) == 1:
                continue
            for place in places:
                blob = self._files[place.blob]
                if self._copy(blob, blob.position(place.offset), chunk):
                    break

    def _copy(self, source: BlobFile, position: int, chunk: int) -> bool:
        with self._blobs.lock:
            if not source.bits[position]:
                return False
            try:
                file = self._blobs.reader(source)
            except NotFound:
                return False
        writer = self.begin(chunk)
        if writer is None:
            return True
        try:
            writer.copy_from(file, source.offsets[position])
            if writer.finish():
                return True
        finally:
            writer.abort()
        self._blobs.drop(source, [position])
        return False

    def flush(self) -> None:
        """Make all proved chunks durable: data first, then the bitmaps; whole blobs are published.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused; flush again later.
        """
        if not self.closed:
            flush_blobs(self._blobs, self._files)

    def show_arriving(self, manifest: bytes) -> Arriving:
        """Let loaders see what is proved while the rest arrives; again is no error. One call at a time.

        Raises:
            NotFound: the model was removed.
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        shown = self.arriving
        if shown is None:
            shown = Arriving(self._blobs, self.layout, self._files)
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
        """Take the arriving directory away; loaders keep what they have open."""
        with self._blobs.lock:
            shown, self.arriving = self.arriving, None
        if shown is not None:
            shown.remove()

    def publish(self, ref: Ref | None = None, generation: int | None = None) -> str:
        """Make the whole model's tree appear, and its tag when there's a generation.

        Returns:
            The tree's path relative to the models directory ("" without a ref).

        Raises:
            P2PCacheError: a chunk is missing, or the disk refused.
        """
        return self._home.publish(self, ref, generation)

    # Checking it

    def recheck(self) -> bool:
        """Compare each file with its proof record, before a path is handed out; whether all is complete.

        What was changed behind our back is believed no longer; `copy_local` proves it again.
        """
        for blob in self._files:
            self._blobs.recheck(blob)
        return self.complete

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[int]:
        """Hash every proved chunk again; bad ones are believed no longer.

        Args:
            progress: called with (bytes hashed, bytes to hash).

        Returns:
            The bad chunks, ascending.
        """
        work = list(self._work())
        total = sum(n for _, _, n in work)
        done = 0
        bad: set[int] = set()
        with ThreadPoolExecutor(VERIFY_THREADS, "verify") as pool:
            for (number, _, size), wrong in zip(work, pool.map(self._check, work), strict=True):
                if wrong:
                    bad.update(self.layout.blobs[number].chunks[p] for p in wrong)
                    self._blobs.drop(self._files[number], wrong)
                done += size
                if progress is not None:
                    progress(done, total)
        return sorted(bad)

    def _work(self) -> Iterator[tuple[int, list[int], int]]:
        for number, blob in enumerate(self._files):
            positions: list[int] = []
            size = 0
            for position, bit in enumerate(bytes(blob.bits)):
                if bit:
                    positions.append(position)
                    size += blob.lengths[position]
                if size >= _VERIFY_BYTES:
                    yield number, positions, size
                    positions, size = [], 0
            if positions:
                yield number, positions, size

    def _check(self, work: tuple[int, list[int], int]) -> list[int]:
        number, positions, _ = work
        blob = self._files[number]
        try:
            file = self._blobs.reader(blob, check=False)
        except P2PCacheError:
            return positions
        return [
            p for p in positions
            if not proves(file.fd, blob.offsets[p], blob.lengths[p], blob.digest(p))
        ]  # fmt: skip

    def pin(self) -> None:
        """Say that the model is in use: `rm` and `prune` leave it alone until `unpin`."""
        with self._blobs.lock:
            self.pins += 1

    def unpin(self) -> None:
        """Take one `pin` back."""
        with self._blobs.lock:
            assert self.pins, "unpin without pin"
            self.pins -= 1

    def close(self) -> None:
        """Stop writers and let go of the blobs; the store forgets the model. No flush."""
        with self._blobs.lock:
            self.closed = True
            if self.arriving is not None:
                self.arriving.close()
            self._writers.stop(self)
            for number, blob in enumerate(self._files):
                blob.owners.remove((self, number))
                self._blobs.detach(blob)
            self._have_runs = 0

    # The pool tells (under its lock)

    def blob_gained(self, number: int, positions: Iterable[int]) -> None:
        """Positions of one of our blobs are proved now."""
        chunks = self.layout.blobs[number].chunks
        before = self._have_runs
        if self.arriving is not None:
            self.arriving.gained(number)
        for chunk in {chunks[p] for p in positions}:
            if self._have[chunk] or self.open_places(chunk):
                continue
            self._have[chunk] = 1
            self._missing -= 1
            self._bytes_done += self.layout.lengths[chunk]
            run = self.layout.run_of(chunk)
            self._run_left[run] -= 1
            if not self._run_left[run]:
                if self.arriving is not None:
                    self.arriving.ready(run)
                self._have_runs |= 1 << run  # last: who sees it without the lock may tell a loader
        if self._have_runs != before and self.on_ready is not None:
            self.on_ready()

    def blob_lost(self, number: int, positions: Iterable[int]) -> None:
        """Positions of one of our blobs are proved no longer."""
        before = self._have_runs
        chunks = self.layout.blobs[number].chunks
        for chunk in {chunks[p] for p in positions}:
            if not self._have[chunk]:
                continue
            self._have[chunk] = 0
            self._missing += 1
            self._bytes_done -= self.layout.lengths[chunk]
            run = self.layout.run_of(chunk)
            self._run_left[run] += 1
            self._have_runs &= ~(1 << run)
        lost = before & ~self._have_runs
        if lost and self.arriving is not None:
            self.arriving.lost(lost)
        if lost and self.on_lost is not None:
            self.on_lost(lost)

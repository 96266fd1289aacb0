"""A model as a door hands it out: its files, whose bytes go out while chunks still arrive."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aiohttp import web

from p2pcache.agent.api.routes import Rule
from p2pcache.agent.doors.http_range import asked_range, is_range, wanted_bytes
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.jobs.pulls import Pulls
from p2pcache.core.format.file_filter import runs_of
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.http.body_writer import BURST_BYTES, PIECE_BYTES, BodyWriter, FileBytes, Pace
from p2pcache.io.models.store import Store

RULE = Rule(Scope.PULL, "seen", "pull", cheap=True)  # of every call; the namespace is checked later
LOOK_S = 0.02  # between two looks whether the next chunk has come: well below a chunk's time on a usual link
REUSE_S = 2.0  # a moved tag is seen within this, as at the tracker; a client asks for hundreds of ranges of one file
PUBLISH_S = 30.0  # between two publications of a complete model, each of which is a use: those within a minute are one
MAX_RECENT = 1000  # names that are remembered for so long
DATA_BYTES = 64 << 10  # of the door's own data at once: a client that doesn't read holds no more
AHEAD_RUNS = 4  # asked for at once before all else: the stream doesn't wait a round trip for each


class Part(NamedTuple):
    """A part of an answer: a whole file, or some bytes of the door's own."""

    file: File | None
    data: bytes | memoryview | FileBytes = b""

    @property
    def size(self) -> int:
        """In bytes."""
        if self.file is not None:
            return self.file.size
        return self.data.length if isinstance(self.data, FileBytes) else len(self.data)

    def own(self, start: int, end: int) -> Iterator[bytes | FileBytes]:
        """The bytes [start, end) of the door's own."""
        if isinstance(self.data, FileBytes):
            yield self.data._replace(offset=self.data.offset + start, length=end - start)
            return
        for at in range(start, end, DATA_BYTES):
            yield bytes(self.data[at : min(at + DATA_BYTES, end)])


class _Piece(NamedTuple):
    """Consecutive bytes of one chunk."""

    chunk: int
    start: int  # in the chunk
    length: int


class OpenModel:
    """A model that a door's client reads. Its download fetches only what clients read."""

    def __init__(self, ref: Ref, generation: int, download: Download) -> None:
        self.ref = ref
        self.generation = generation
        self.download = download
        self.opened = time.monotonic()
        self.files: dict[str, File] = {
            file.path: file for file in download.swarm.layout.manifest.files
        }

    @property
    def layout(self) -> Layout:
        """Of the model."""
        return self.download.swarm.layout

    @property
    def fresh(self) -> bool:
        """Whether it may stand for its name for a little longer."""
        store, ended = self.download.swarm.store, self.download.ended.done()
        recent = time.monotonic() - self.opened < REUSE_S
        return recent and not store.closed and (store.complete or not ended)

    def blob_id(self, path: str) -> str:
        """What names a file's bytes, as `File.blob_id`, which hashes the list of its chunks."""
        return self.layout.blobs[self.layout.blob_of_file[path]].id

    def file(self, path: str) -> File:
        """The file at a path.

        Raises:
            NotFound: the model has no such file.
        """
        found = self.files.get(path)
        if found is None:
            raise NotFound(f"{self.ref.short} has no file {path!r}")
        return found


class ModelDoor:
    """Opens models for doors, and streams their files."""

    def __init__(
        self, store: Store, resolver: Resolver, pulls: Pulls, downloads: DownloadManager
    ) -> None:
        self.resolver = resolver
        self._store = store
        self._pulls = pulls
        self._downloads = downloads
        self._count = itertools.count()
        self._recent: dict[Ref, OpenModel] = {}
        self._published: dict[tuple[Ref, str], float] = {}  # when, of complete models

    async def open(self, ref: Ref, url: str = "", *, whole: bool = False) -> OpenModel:
        """Resolve a ref and read its manifest. No byte of a file is fetched, or all are with `whole`.

        Args:
            ref: of the model.
            url: the model of a hub that the tag stands for, brought in if it is missing; "": of none.
            whole: fetch all of it now.

        Raises:
            NotFound: the ref has a digest, and this cache knows no model of that name with it. A digest alone
                gives no access: it may be of a namespace that the caller may not read.
            P2PCacheError: as `Pulls.begin_download`.
        """
        known = self._recent.get(ref)
        if known is not None and known.fresh and (known.download.whole or not whole):
            return known
        digest = ref.digest
        if digest is not None and digest not in {one for _, one in await self.known(ref)}:
            raise NotFound(f"no tag of {ref.namespace}/{ref.name} here names {digest[:12]}")
        with contextlib.ExitStack() as use:  # streams protect it for as long as they read
            resolved, download = await self._pulls.begin_download(
                ref, use, force=False, whole=whole, url=url
            )
        opened = OpenModel(ref, resolved.generation, download)
        if len(self._recent) >= MAX_RECENT:
            self._recent.clear()
        self._recent[ref] = opened
        return opened

    async def refs(self) -> list[Ref]:
        """The tags that this node knows."""
        return [*await pools.STEPS.run(self._store.refs), *(ref for ref, _ in self._asked())]

    async def known(self, ref: Ref) -> list[tuple[str, str]]:
        """The tags of a name that this node knows, each with the digest that it means, or meant lately."""
        asked = [(one.tag, digest) for one, digest in self._asked() if one[:2] == ref[:2]]
        return [*await pools.STEPS.run(self._stored, ref), *asked]

    def _asked(self) -> list[tuple[Ref, str]]:
        """Tags that clients asked for and that aren't set yet, with the model that each meant."""
        return self._downloads.asked_tags.with_digests()

    def _stored(self, ref: Ref) -> list[tuple[str, str]]:
        found = [one for one in self._store.refs() if one[:2] == ref[:2]]
        return [(one.tag, digest) for one in found if (digest := self._store.named(one))]

    async def send_file(
        self,
        request: web.Request,
        model: OpenModel,
        file: File,
        headers: dict[str, str],
        pace: Pace | None = None,
    ) -> web.StreamResponse | None:
        """Answer with a file, as `send_parts` does."""
        return await self.send_parts(request, model, [Part(file)], headers, pace)

    async def send_parts(
        self,
        request: web.Request,
        model: OpenModel,
        parts: Sequence[Part],
        headers: dict[str, str],
        pace: Pace | None = None,
    ) -> web.StreamResponse | None:
        """Answer with parts behind one another, or with the range of them that the request wants; HEAD gets no body.

        Args:
            request: of a client.
            model: which has the files.
            parts: to send.
            headers: of the answer, beside those of its length and range.
            pace: called with the bytes that were sent; says how many seconds to wait.

        Returns:
            The answer; None: there is no such range (416).

        Raises:
            P2PCacheError: before the first byte; later the connection breaks, so that the client asks for the rest.
        """
        size = sum(part.size for part in parts)
        asked = asked_range(request.headers, headers)
        span = wanted_bytes(asked, size) if size else (0, 0)
        if span is None:
            return None
        start, end = span
        partial = bool(size) and is_range(asked)
        response = web.StreamResponse(status=206 if partial else 200, headers=headers)
        response.headers["Content-Length"] = str(end - start)
        if partial:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        body: BodyWriter | None = None
        try:
            async with aclosing(self._pieces(model, parts, *span)) as pieces:
                async for piece in pieces:
                    # Until the first byte an error is an answer.
                    body = body or await BodyWriter.begin_body(request, response, pace)
                    await (
                        body.write_bytes(piece)
                        if isinstance(piece, bytes)
                        else body.write_file(piece)
                    )
            if not response.prepared:
                await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            pass  # the client has left
        except (P2PCacheError, OSError):
            if not response.prepared:
                raise
            if request.transport is not None:
                request.transport.abort()
        finally:
            if body is not None:
                body.close()
        return response

    async def stream(
        self, model: OpenModel, parts: Sequence[Part], start: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """The bytes [start, end) of parts, in order, each of a file proved; waits for those that aren't here yet.

        Raises:
            P2PCacheError: they can't be fetched, or the disk can't read them.
        """
        async with aclosing(self._pieces(model, parts, start, end)) as pieces:
            async for piece in pieces:
                if isinstance(piece, bytes):
                    yield piece
                    continue
                for at in range(0, piece.length, PIECE_BYTES):
                    count = min(PIECE_BYTES, piece.length - at)
                    yield await pools.PULLS.run(piece.pread, at, count)

    async def _pieces(
        self, model: OpenModel, parts: Sequence[Part], start: int, end: int
    ) -> AsyncGenerator[bytes | FileBytes, None]:
        """As `stream`: bytes of the door's own, and where those of files can be read."""
        client = f"door-{next(self._count)}"
        with contextlib.ExitStack() as use:
            download = await self._protected(model, use)
            store = download.swarm.store
            complete = store.complete
            use.enter_context(download.client(model.ref))
            try:
                if not store.complete:
                    paths = [part.file.path for part in parts if part.file is not None]
                    download.wish(client, await pools.WORK.run(runs_of, model.layout, paths))
                position = 0
                for part in parts:
                    first, last = max(start - position, 0), min(end - position, part.size)
                    position += part.size
                    if first >= last:
                        continue
                    if part.file is None:
                        for own in part.own(first, last):
                            yield own
                        continue
                    async for piece in self._of_file(download, part.file, first, last):
                        yield piece
            finally:
                download.forget_wish(client)
            if store.complete and download.ended.done() and self._is_due(model, complete=complete):
                # The last byte has come: the model is one of this cache from now on.
                await self._downloads.publish_model(download, model.ref, model.generation)

    async def _protected(self, model: OpenModel, use: contextlib.ExitStack) -> Download:
        """The download of an open model, which stays now; another one if it was removed since it was opened."""
        swarm = model.download.swarm
        if self._downloads.swarms.get(swarm.digest) is not swarm:
            return await self._downloads.join_or_begin(model.ref, swarm.digest, use, whole=False)
        self._downloads.protect(swarm, use)
        return model.download

    async def _of_file(
        self, download: Download, file: File, start: int, end: int
    ) -> AsyncGenerator[FileBytes, None]:
        """Where a file's bytes can be read: those of many chunks at once, where they are here."""
        store = download.swarm.store
        here: list[_Piece] = []
        size = 0
        for piece in _pieces(download.swarm.layout, file, start, end):
            proved = store.has_chunk(piece.chunk)
            if here and (not proved or size + piece.length > BURST_BYTES):
                for found in await pools.PULLS.run(_find, download, here):
                    yield found
                here, size = [], 0
            if not proved:
                await self._arrived(download, piece.chunk)
            here.append(piece)
            size += piece.length
        for found in await pools.PULLS.run(_find, download, here):
            yield found

    async def _arrived(self, download: Download, chunk: int) -> None:
        """Wait until a chunk is proved here."""
        store, layout = download.swarm.store, download.swarm.layout
        first = layout.run_of(chunk)
        last = min(first + AHEAD_RUNS, layout.run_count)
        download.on_urgent(sum(1 << run for run in range(first, last)))
        while not store.has_chunk(chunk):
            await asyncio.wait([download.ended], timeout=LOOK_S)
            if download.ended.done():
                download.ended.result()
                if not store.has_chunk(chunk):
                    raise NotFound("the model was removed while it was read; read it again")

    def _is_due(self, model: OpenModel, *, complete: bool) -> bool:
        """Whether a stream that has ended publishes; `complete`: the model was so when the stream began."""
        name, now = (model.ref, model.layout.digest), time.monotonic()
        if complete and now - self._published.get(name, -PUBLISH_S) < PUBLISH_S:
            return False
        if len(self._published) >= MAX_RECENT:
            self._published.clear()
        self._published[name] = now
        return True


def _find(download: Download, pieces: Sequence[_Piece]) -> list[FileBytes]:
    """Where pieces lie, those side by side as one; each file is compared with its proof.

    Raises:
        NotFound: one isn't here any more, or the disk can't read it.
    """
    store = download.swarm.store
    found: list[FileBytes] = []
    for piece in pieces:
        source = store.source(piece.chunk)
        at, length = source.offset + piece.start, piece.length
        try:
            os.pread(source.fd, 1, at)  # once the head is sent a refusal costs the connection
        except OSError as error:
            store.unreadable(piece.chunk)
            raise NotFound(
                f"the cache's disk failed to read a file ({error.strerror}); read it again"
            ) from None
        last = found[-1] if found else None
        if last is not None and last.keeper is source.file and last.offset + last.length == at:
            found[-1] = last._replace(length=last.length + length)
        else:
            found.append(FileBytes(source.fd, at, length, source.file))
    return found


def _pieces(layout: Layout, file: File, start: int, end: int) -> Iterator[_Piece]:
    position = 0
    for chunk in layout.blobs[layout.blob_of_file[file.path]].chunks:
        length = layout.lengths[chunk]
        first, last = max(start - position, 0), min(end - position, length)
        for offset in range(first, last, BURST_BYTES):
            yield _Piece(chunk, offset, min(BURST_BYTES, last - offset))
        position += length
        if position >= end:
            return

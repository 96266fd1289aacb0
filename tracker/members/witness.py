"""The witness: the tracker reads a run that a member read wrong, before it stops the model."""

import asyncio
import logging
from collections.abc import Callable

from blake3 import blake3

from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.format import manifest as manifests
from p2pcache.core.format.layout import Layout
from p2pcache.core.membership.outputs import ReadRun
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import P2PCacheError
from p2pcache.ids import RunIndex
from p2pcache.io.origins.fetch import fetch_run
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.retry import never
from p2pcache.tracker.catalog import Catalog

_log = logging.getLogger(__name__)

WAITING = 16  # runs that may wait: usually one model is in trouble at a time
READ_S = 8.0  # for a run over a slow link; the member's pull waits for it
MOST_MANIFEST_BYTES = 32 << 20  # the tables of a larger one would take too much memory


class Witness:
    """Reads runs one after the other, and keeps no bytes of them."""

    def __init__(self, catalog: Catalog, done: Callable[[ReadRun, WitnessReport], None]) -> None:
        """`done` is called once for each run, with the finding."""
        self.reads = 0  # for metrics
        self._catalog = catalog
        self._done = done
        self._one = asyncio.Lock()
        self._waiting = 0

    async def reread(self, asked: ReadRun) -> None:
        """Read a run and prove it, unless too many wait."""
        word = WitnessReport.NONE
        self._waiting += 1
        try:
            if self._waiting <= WAITING:
                async with self._one:
                    word = await self._word(asked)
        finally:
            self._waiting -= 1
            self._done(asked, word)

    async def _word(self, asked: ReadRun) -> WitnessReport:
        self.reads += 1
        try:
            encoded = await self._catalog.manifest(asked.digest, telling=False)
            if len(encoded) > MOST_MANIFEST_BYTES:
                return WitnessReport.NONE
            return await self._catalog.ask_origin(
                ("run", asked.digest, str(asked.run)),
                lambda repo: _read(repo, encoded, asked),
                READ_S,
                telling=False,  # storage that fails is one of its words
            )
        except P2PCacheError as error:
            _log.info("run %d of %.12s can't be read here: %s", asked.run, asked.digest, error)
            return WitnessReport.NONE


def _read(repo: OriginRepo, encoded: bytes, asked: ReadRun) -> WitnessReport:
    layout = Layout(manifests.decode(encoded, asked.digest), asked.digest)
    if asked.run >= layout.run_count:
        return WitnessReport.NONE
    outcome = fetch_run(
        repo, layout, _Proof(layout), asked.run, on_bytes=lambda _: None, cancelled=never
    )
    if outcome is Outcome.DONE:
        return WitnessReport.RIGHT
    if outcome is not Outcome.MISMATCH:
        return WitnessReport.NONE
    # If even the manifest is missing, this tracker itself reads an empty mount or another bucket. A model that was
    # imported in place lies at a source, which this tracker doesn't read.
    elsewhere = not repo.has_manifest(asked.digest) or repo.sources_of(asked.digest) is not None
    return WitnessReport.NONE if elsewhere else WitnessReport.WRONG


class _Proof:
    """A target that stores nothing."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def missing_chunks(self, run: RunIndex) -> list[int]:
        return list(self._layout.run_chunks(run))

    def begin(self, chunk: int) -> "_Chunk":
        return _Chunk(self._layout.digest_of_chunk(chunk))


class _Chunk:
    """Hashes one chunk."""

    def __init__(self, digest: bytes) -> None:
        self._digest = digest
        self._hash = blake3()

    def update(self, data: memoryview) -> None:
        self._hash.update(data)

    def put(self, offset: int, data: memoryview) -> None:
        pass

    def finish(self) -> bool:
        return self._hash.digest() == self._digest

    def abort(self) -> None:
        pass

"""Other clusters' sites: models that their agents seed are brought in from there, before storage is read.

A site is believed nothing. This cluster's own tracker and storage resolve tags; a manifest is proved by
its digest, and each chunk by BLAKE3.
"""

import asyncio
import contextlib
import importlib.util
import logging
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.far_sites.crossing import Crossing
from p2pcache.core.protocol.address import split
from p2pcache.core.protocol.tokens import EVERY, check_namespaces
from p2pcache.errors import (
    NotAllowed,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    RemoteProtocolError,
    Unreachable,
    UsageError,
    from_code,
)
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.tasks import Shared
from p2pcache.io.torrents import finding
from p2pcache.io.torrents.finding import MANIFEST, Found

log = logging.getLogger(__name__)

FOLDER = "far-sites"  # in the cache dir; nothing in it outlives a crossing
SILENT_S = 30.0  # without a question to sites that don't answer: each holds a pull up for seconds
_ELSEWHERE = (NotFound, NotAllowed, OriginUnavailable, Unreachable)  # then another site may have it

ReadManifest = Callable[[str], Awaitable[bytes]]
"""The proved manifest of a digest, from this cluster's tracker or storage."""


class FarSites:
    """Which sites may be asked for models of which namespace, and how a model comes from one of them."""

    def __init__(self, context: AgentContext, own: ReadManifest) -> None:
        """Nobody is asked yet.

        Args:
            context: of the agent.
            own: is asked for a manifest first.

        Raises:
            UsageError: the setting makes no sense, or libtorrent isn't installed.
        """
        self._sites = parse_sites(context.settings.torrent_sites)
        if self._sites and importlib.util.find_spec("libtorrent") is None:
            raise UsageError("torrent_sites needs libtorrent: pip install 'p2pcache[torrent]'")
        self._context = context
        self._own = own
        self._folder = context.store.root / FOLDER
        self._asking = Shared[Found]()
        self._silent_until: dict[tuple[str, ...], float] = {}  # sites that didn't answer

    def start(self) -> None:
        """Remove what an earlier life left."""
        _remove(self._folder)

    async def manifest(self, ref: Ref, digest: str) -> bytes:
        """The manifest's bytes, from this cluster or from another site.

        Raises:
            P2PCacheError: as `own`; or the cache's disk refused.
        """
        try:
            return await self._own(digest)
        except _ELSEWHERE as error:
            try:
                found = await self._find(ref, digest)
            except P2PCacheError as elsewhere:
                raise from_code(error.exit_code, f"{error}; {elsewhere}") from None
            if found is None:
                raise
            folder = self._folder / digest
            try:
                return await pools.STEPS.run((folder / MANIFEST).read_bytes)
            finally:
                await pools.STEPS.run(_remove, folder)

    @contextlib.asynccontextmanager
    async def bringing(self, download: Download) -> AsyncIterator[None]:
        """For the length of the block bring a download's runs from another site, if one has them."""
        found = None
        if not download.swarm.complete:
            try:
                found = await self._find(download.ref, download.swarm.digest)
            except P2PCacheError as error:
                log.warning("%s isn't brought from another site: %s", download.ref.short, error)
        if found is None:
            yield
            return
        log.info("%s comes from site %s", download.ref.short, found.site)
        folder = self._folder / download.swarm.digest
        download.swarm.reads_storage = False
        crossing = Crossing(self._context, download, found, folder)
        work = self._context.tasks.spawn(
            crossing.bring(), name=f"crossing-{download.swarm.digest[:12]}"
        )
        try:
            yield
        finally:
            work.cancel()
            await asyncio.wait([work])
            download.swarm.reads_storage = True
            await pools.WORK.run(_remove, folder)

    async def _find(self, ref: Ref, digest: str) -> Found | None:
        """Where a model is seeded; None: nobody may be asked for it, or not so soon again.

        Raises:
            P2PCacheError: no site gives it.
        """
        sites = self._sites.get(ref.namespace) or self._sites.get(EVERY)
        if not sites or self._context.now() < self._silent_until.get(sites, 0.0):
            return None
        try:
            return await self._asking.share(
                f"{ref.full_name}@{digest}", lambda: self._ask(ref, digest, sites)
            )
        except Unreachable:
            self._silent_until[sites] = self._context.now() + SILENT_S
            raise

    async def _ask(self, ref: Ref, digest: str, sites: tuple[str, ...]) -> Found:
        folder = self._folder / digest
        with disk_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{ref.namespace}/{ref.name}"
        process = await asyncio.create_subprocess_exec(
            *finding.command(name, digest, folder, sites), stdout=PIPE, stderr=PIPE
        )
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            why = err.decode(errors="replace").strip().splitlines()[-1:] or ["it ended"]
            raise from_code(process.returncode, why[0])
        return msgspec.json.decode(out, type=Found)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def parse_sites(setting: str) -> dict[str, tuple[str, ...]]:
    """The sites of each namespace, in the order in which they are asked.

    Args:
        setting: NAMESPACE=HOST:PORT, separated by commas.

    Raises:
        UsageError: it makes no sense.
    """
    found: dict[str, tuple[str, ...]] = {}
    for entry in setting.replace(",", " ").split():
        namespace, equals, site = entry.partition("=")
        with contextlib.suppress(RemoteProtocolError):
            if equals and split(site):
                found[namespace] = (*found.get(namespace, ()), site)
                continue
        raise UsageError(
            f"torrent_sites: {entry[:80]!r} isn't NAMESPACE=HOST:PORT, such as public=site-a.example:7405"
        )
    if found:
        check_namespaces(tuple(found))
    return found

"""Answers of the API about this node: health, models, pulls, and the cluster as the tracker sees it."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

import p2pcache
from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.give_up import CUT_OFF, odd_storage
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.jobs.housekeeping import local_model, open_model
from p2pcache.agent.link_trouble import Unanswered, twin_text
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.agent.node.metrics import AgentMetrics
from p2pcache.agent.settings import EXAMINED, PATHS
from p2pcache.core.format import manifest as manifests
from p2pcache.core.swarm.events import Source
from p2pcache.core.units import format_bytes
from p2pcache.errors import NotAllowed, NotFound, P2PCacheError, Unreachable
from p2pcache.ids import Ref, format_node
from p2pcache.io import pools
from p2pcache.io.disk.disk import FEW_INODES, MAKE_INODES, MAKE_WRITABLE
from p2pcache.io.signatures.in_origin import add_signature

log = logging.getLogger(__name__)

DISK_S = 3.0  # for the cache's disk to say how full it is; a person waits for the status
TAKEOVER_S = 15.0  # until a standby is the active tracker, and we are with it
AGAIN_S = 0.2  # between two looks whether we are
TWIN_S = 60.0  # a warning of a twin lasts; a live twin tries to become a member every few seconds


class Queries:
    """Read-only views."""

    def __init__(
        self, context: AgentContext, resolver: Resolver, downloads: DownloadManager, metrics: AgentMetrics,
        governor: GovernorLoop,
    ) -> None:  # fmt: skip
        self.origin_trouble: P2PCacheError | None = None  # why the origin couldn't be opened
        self.origin_doubt: P2PCacheError | None = None  # why the open origin failed its test
        self.address = ""
        self.name = ""  # what people call this node
        self._started = time.monotonic()
        self._twin = ""  # a warning of another agent that has our node id
        self._twin_at = 0.0  # when the tracker told us of it, monotonic
        self._context = context
        self._resolver = resolver
        self._downloads = downloads
        self._metrics = metrics
        self._governor = governor

    def on_twin_seen(self, where: str) -> None:
        """The tracker refused another agent that has our node id."""
        text = twin_text(
            self._context.node,
            f"at {where}, which the tracker refuses",
            str(self._context.store.root),
        )
        if text != self._twin:
            log.warning("%s", text)
        self._twin, self._twin_at = text, time.monotonic()

    # -- health ------------------------------------------------------------------------------------

    def reasons(self, wording: Callable[[P2PCacheError], str] = str) -> list[str]:
        """Why this agent isn't ready to take part; empty when it is. `wording`: makes a text of an origin's error."""
        reasons = []
        link = self._context.link
        if link is not None and link.refusal is not None:
            reasons.append(str(link.refusal))  # the tracker answers, and refuses us
        elif link is not None and not link.connected:
            reasons.append(link.trouble)
        if self.origin_trouble is not None:
            reasons.append(f"origin: {wording(self.origin_trouble)}")
        return reasons

    def warnings(
        self,
        wording: Callable[[P2PCacheError], str] = str,
        sees: Callable[[str], bool] = lambda _namespace: True,
    ) -> list[str]:
        """What an operator should look at although the agent is ready.

        Args:
            wording: as for `reasons`.
            sees: whether models of a namespace may be named.
        """

        def name_of(refs: list[Ref]) -> str:
            return next((str(ref) for ref in refs if sees(ref.namespace)), "a model")

        tls = self._context.tls
        unsure = (self.origin_doubt, self._refusing)
        doubts = [*dict.fromkeys(f"origin: {wording(one)}" for one in unsure if one is not None)]
        if self._twin and time.monotonic() - self._twin_at < TWIN_S:
            doubts.append(self._twin)
        if (odd := self._context.origin.odd) is not None:
            ref, why = odd
            told = why if sees(ref.namespace) else "the log says more"
            doubts.append(odd_storage(name_of([ref]), told))
        for download in self._downloads.running.values():
            scheduler = download.swarm.scheduler
            if scheduler is not None and scheduler.cut_off:
                doubts.append(f"{name_of(download.refs)}: {CUT_OFF}")
        doubts += self._no_room()
        return doubts + (tls.warnings() if tls is not None else [])

    def _no_room(self) -> list[str]:
        """A warning if hardly any new model fits on the cache's disk. Models that are here are served and loaded.

        With a quota old models make room for bytes by themselves, up to just that.
        """
        store, usage = self._context.store, self._context.usage
        if usage.read_only:
            return [f"no new model fits: the disk of {store.root} is read-only; {MAKE_WRITABLE}"]
        if usage.free_inodes is not None and usage.free_inodes < FEW_INODES:
            left = f"{usage.free_inodes} inodes left for {store.root}"
            return [f"hardly any new model fits: {left}; {MAKE_INODES}"]
        free, kept = usage.free_bytes, store.min_free_bytes
        if free > kept or store.limits.quota_bytes:
            return []
        said = f"{format_bytes(free)} free, {format_bytes(kept)} are kept free (min_free_bytes)"
        advice = "make room with `p2pcache rm` or `p2pcache prune --all`"
        return [f"the cache's disk is full: {said}, so no new model fits; {advice}"]

    @property
    def _refusing(self) -> P2PCacheError | None:
        """Why the last call to storage failed; None: it didn't."""
        repo = self._context.origin.repo
        return None if repo is None else repo.trouble

    async def model_reasons(self, ref: Ref) -> list[str]:
        """Why that model isn't ready here."""
        try:
            known = await local_model(self._context.store, ref)
        except NotFound:
            return [f"model {ref} is not in this cache; run: p2pcache pull {ref}"]
        if known.complete:
            return []
        return [f"model {ref} is incomplete: {known.bytes_done} of {known.bytes_total} bytes"]

    def metrics(self) -> tuple[bytes, str]:
        """Prometheus text and its content type."""
        return generate_latest(self._metrics.registry), CONTENT_TYPE_PLAIN_0_0_4

    # -- models ------------------------------------------------------------------------------------

    async def models(self) -> list[dict[str, object]]:
        """Every model of the cache, complete or not."""
        return [known.as_json() for known in await pools.STEPS.run(self._context.store.models)]

    async def model(self, ref: Ref) -> dict[str, object]:
        """One model with its files; looked up at tracker or origin when it isn't here.

        Raises:
            P2PCacheError: it can't be looked up.
        """
        spelled = await self._resolver.spelling(ref)
        try:
            known = await local_model(self._context.store, ref)
        except NotFound:
            resolved = await self._resolver.resolve(ref)
            encoded = await self._resolver.manifest(resolved.digest)
            manifest = await pools.WORK.run(manifests.decode, encoded, resolved.digest)
            row: dict[str, object] = {
                "ref": str(ref), "namespace": ref.namespace, "name": ref.name, "tags": [ref.tag],
                "digest": resolved.digest, "bytes": manifest.size_bytes, "files": len(manifest.files),
                "bytes_done": 0, "complete": False, "remote": False, "partly_evicted": False,
                "last_used": 0, "kept": "", "generation": resolved.generation,
            }  # fmt: skip
            return {**row, "spelled": spelled, "local": False, "manifest": _files(manifest)}
        stored = await pools.STEPS.run(self._context.store.manifest, known.digest)
        if known.remote and stored is not None:
            manifest = await pools.WORK.run(manifests.decode, stored, known.digest)
        else:
            model = await open_model(self._context.store, self._downloads, ref, known)
            manifest = model.layout.manifest
        generation = await pools.STEPS.run(self._context.store.generation_seen, ref)
        row = {**known.as_json(), "spelled": spelled, "generation": generation, "local": True}
        return {**row, "manifest": _files(manifest)}

    async def signatures(self, ref: Ref) -> dict[str, object]:
        """The stored signatures of a model; nothing about them is proved."""
        resolved = await self._resolver.resolve(ref)
        found = await self._resolver.read_signatures(ref.namespace, resolved.digest)
        return {"digest": resolved.digest, "signatures": found}

    async def store_signature(self, ref: Ref, digest: str, bundle: str) -> None:
        """Store a signature for a digest in a ref's namespace.

        Raises:
            P2PCacheError: it isn't one, or storage can't be written.
        """
        repo = self._resolver.repo
        if repo is None:
            raise self._resolver.no_answer("can't store a signature")
        await pools.WORK.run(add_signature, repo, ref.namespace, digest, bundle)

    # -- cluster -----------------------------------------------------------------------------------

    def pulls(self) -> list[dict[str, object]]:
        """The pulls that run now."""
        now = self._context.now()
        rows: list[dict[str, object]] = []
        for download in self._downloads.running.values():
            rate, done = download.rate(now), download.swarm.bytes_done
            left = download.bytes_total - done
            rows.append({
                "ref": str(download.ref), "refs": [str(ref) for ref in download.refs],
                "digest": download.swarm.digest, "bytes_done": done,
                "bytes_total": download.bytes_total, "rate": round(rate),
                "eta_s": round(left / rate, 1) if rate > 0 else None,
                "peers": download.swarm.peer_count,
                "bytes_origin": download.swarm.traffic[Source.ORIGIN],
                "bytes_peers": download.swarm.traffic[Source.PEER],
                "started": download.started_unix, "clients": download.clients, "kind": download.kind,
            })  # fmt: skip
        return rows

    async def ask_tracker(self, what: str, text: str = "") -> bytes:
        """JSON that the tracker gives. Where another one may take over, it is waited for.

        Raises:
            Unreachable: no tracker configured, or it doesn't answer, or has no answer now.
            NotAllowed: it refuses this node.
        """
        link = self._context.link
        if link is None:
            raise Unreachable(
                "this agent has no tracker: it works alone (set --tracker to join a cluster)"
            )
        until = time.monotonic() + TAKEOVER_S
        while True:
            try:
                return (await link.ask(what, text)).data
            except Unreachable as error:
                if link.refusal is not None:
                    raise NotAllowed(str(link.refusal)) from None
                if not link.may_move or time.monotonic() > until:
                    if not isinstance(error, Unanswered):
                        raise  # the tracker answers, and its words are all there is to say
                    told = (
                        f"{error}; pulls go on without it; `p2pcache doctor` examines the way to it"
                    )
                    raise Unreachable(told) from None
            await asyncio.sleep(AGAIN_S)

    def settings(self) -> dict[str, object]:
        """The settings that `doctor` examines, as the agent was started with them."""
        told = {name: getattr(self._context.settings, name) for name in EXAMINED}
        # Relative ones are relative to where the agent was started.
        return {n: str(Path(v).absolute()) if v and n in PATHS else v for n, v in told.items()}

    async def status(
        self,
        wording: Callable[[P2PCacheError], str] = str,
        sees: Callable[[str], bool] = lambda _namespace: True,
    ) -> dict[str, object]:
        """This node's state on one screen. The arguments are those of `warnings`."""
        silent = await self._measure()
        usage = self._context.usage
        link, repo = self._context.link, self._resolver.repo
        traffic = self._metrics.totals()
        refusing = self._refusing
        trouble = self.origin_trouble or refusing
        return {
            "node": format_node(self._context.node), "name": self.name, "address": self.address,
            "rack": self._context.settings.rack, "site": self._context.settings.site,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "version": p2pcache.__version__, "ready": not self.reasons(), "reasons": self.reasons(wording),
            "warnings": [*self.warnings(wording, sees), *silent],
            "tracker": {
                "url": link.url if link else "", "connected": link is not None and link.connected,
                "met": link is not None and link.epoch != 0,  # it was a member at some time
                "error": "" if link is None or link.connected else link.last_error,
                "refused": link is not None and link.refusal is not None,
                "changed_at": link.changed_at if link else 0.0,
                "last_heartbeat": link.heartbeat_at if link else 0.0,
            },
            "origin": {
                "url": repo.url if repo else "", "error": "" if trouble is None else wording(trouble),
                "refused": refusing is not None and not refusing.retryable,
            },
            "cache": {
                "dir": str(self._context.store.root), "cached_bytes": usage.cached_bytes,
                "free_bytes": usage.free_bytes, "quota_bytes": self._context.store.limits.quota_bytes,
            },
            "models": len(self._downloads.swarms), "pulls": self.pulls(),
            "load": self._context.net.load, "peers": self._context.net.stats.connections,
            "bytes": traffic, "governor": self._governor.state(),
        }  # fmt: skip

    async def _measure(self) -> list[str]:
        """See how full the cache is. A warning if its disk doesn't answer: then it is as it was at the last look."""
        try:
            async with asyncio.timeout(DISK_S):
                self._context.usage = await pools.STEPS.run(self._context.store.usage)
        except TimeoutError:
            root = self._context.store.root
            return [f"the cache's disk doesn't answer ({root}): look at `dmesg` and at its mount"]
        return []


def _files(manifest: manifests.Manifest) -> dict[str, object]:
    return {
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "chunks": len(file.lengths),
                **({"sha256": f"sha256:{file.sha256.hex()}"} if file.sha256 else {}),
            }
            for file in manifest.files
        ]
    }

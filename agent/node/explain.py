"""Explains a pull, for `GET /v1/explain`: what it waits for while it runs, where its time went afterwards."""

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.journal import Journal
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.core import bitset
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.swarm.snapshot import WAITS, InFlight, SwarmView
from p2pcache.errors import NotFound
from p2pcache.ids import Ref, format_node
from p2pcache.io import pools
from p2pcache.io.disk.agent_db import HISTORY_ROWS, last_pull
from p2pcache.io.disk.store_info import cached_part, why_no_pull

MOST = 50  # peers, and requests and reads in flight, in one answer
STUCK = 3  # runs whose story is in the answer
BEHIND = "warms and the background wait for others that go first: see p2pcache ps"


class Explainer:
    """Gathers what the scheduler, the download and the history know. It changes nothing."""

    def __init__(
        self,
        context: AgentContext,
        downloads: DownloadManager,
        resolver: Resolver,
        journal: Journal,
        governor: GovernorLoop,
    ) -> None:
        self._context = context
        self._downloads = downloads
        self._resolver = resolver
        self._journal = journal
        self._governor = governor

    async def explain(self, ref: Ref) -> dict[str, object]:
        """The running pull of a model, else the last one.

        Raises:
            NotFound: this node never pulled it; it may wait for what the name means.
        """
        digest = ref.digest or await self._digest(ref)
        running = self._downloads.running.get(digest)
        rows = await self._journal.rows(HISTORY_ROWS)
        found = {"digest": digest, "last": None, "report": None} | last_pull(rows, ref, digest)
        models = await pools.STEPS.run(self._context.store.models)
        if running is None and found["last"] is None:
            raise NotFound(self._asks_now(ref) or why_no_pull(ref, models))
        found["here"] = cached_part(str(found["digest"]), models)
        if running is None:
            return {"ref": str(ref), "state": "idle", "now": None, **found}
        report = self._downloads.report(running)
        return {
            "ref": str(ref), "state": "running", "now": self._now(running), **found,
            "digest": digest, "report": report,
        }  # fmt: skip

    def _asks_now(self, ref: Ref) -> str:
        """Who is asked now what a ref names, for a pull or whatever else; "": nobody."""
        if not self._resolver.asks_for(ref):
            return ""
        trouble = f": {told}" if (told := self._resolver.storage_trouble) is not None else ""
        return f"{ref} waits for {self._resolver.asked} to say what the name means{trouble}"

    async def _digest(self, ref: Ref) -> str:
        """The digest of a ref: of the pull that began last, else of the cache; "": it has none."""
        for digest, download in reversed(self._downloads.running.items()):
            if any(name.tag_key == ref.tag_key for name in download.refs):
                return digest
        tag = await pools.STEPS.run(self._context.store.tag_of, ref)
        return tag.digest if tag is not None else ""

    def _now(self, download: Download) -> dict[str, object]:
        now, swarm = self._context.now(), download.swarm
        done, rate = swarm.bytes_done, download.rate(now)
        state: dict[str, object] = {
            "bytes_done": done, "bytes_total": download.bytes_total, "rate": round(rate),
            "eta_s": round((download.bytes_total - done) / rate, 1) if rate > 0 else None,
            "governor": self._governor.state(),
        }  # fmt: skip
        if swarm.scheduler is None:
            waits = "it starts: manifest, space, and what other models here have"
            return {**state, "waits_for": "", "waits": waits}
        state |= self._swarm(download, swarm.scheduler, now)
        trouble = self._resolver.storage_trouble
        # Peers that send are no reason to name storage, nor is what another site brings.
        needs_it = swarm.reads_storage and state["waits_for"] not in ("", "peers", "busy")
        if trouble is not None and needs_it:
            state["trouble"] = str(trouble)
        return state

    def _swarm(self, download: Download, scheduler: Scheduler, now: float) -> dict[str, object]:
        swarm, began = download.swarm, download.timeline.began
        view, counters = scheduler.view(now), scheduler.counters
        # A download that is held back wants no run now, though runs are missing.
        every = download.wanted & bitset.full(swarm.layout.run_count)
        missing = view.needed if scheduler.wanted else every & ~scheduler.have
        return {
            "waits_for": view.waits_for,
            "waits": WAITS.get(view.waits_for, "nothing is missing") if scheduler.wanted else BEHIND,
            "tracker": view.tracker_up, "alone": view.alone,
            "runs": swarm.layout.run_count, "runs_missing": missing.bit_count(),
            "runs_near": view.held.bit_count(), "runs_leased": len(view.leases) + len(view.reads),
            "peers": _peers(view, swarm), "requests": _flying(view.requests),
            "reads": _flying(view.reads),
            "leases": [{"run": run, "seconds": round(s, 2)} for run, s in view.leases[:MOST]],
            "stuck": [
                {"run": run, "story": [_since(line, began) for line in scheduler.story(run)]}
                for run in view.stuck(STUCK)
            ],
            "counters": {name: getattr(counters, name) for name in counters.__slots__},
        }  # fmt: skip


def _peers(view: SwarmView, swarm: SwarmDriver) -> list[dict[str, object]]:
    """The neighbours, fastest first."""
    members = swarm.neighbours.members
    ranked = sorted(view.peers, key=lambda peer: (-(peer.rate or 0.0), peer.node))
    return [
        {
            "node": format_node(peer.node),
            "address": members[peer.node].address if peer.node in members else "",
            "rate": None if peer.rate is None else round(peer.rate), "useful": peer.useful,
            "asked": peer.asked, "load": peer.load,
            "rests_s": round(peer.rests_s, 2), "delivers": peer.delivers,
        }
        for peer in ranked[:MOST]
    ]  # fmt: skip


def _flying(some: tuple[InFlight, ...]) -> list[dict[str, object]]:
    """Requests or reads in flight, the oldest first."""
    ranked = sorted(some, key=lambda one: -one.seconds)[:MOST]
    rows: list[dict[str, object]] = [
        {"run": one.run, "seconds": round(one.seconds, 2)} for one in ranked
    ]
    for entry, one in zip(rows, ranked, strict=True):
        if one.node is not None:
            entry["node"] = format_node(one.node)
    return rows


def _since(line: str, began: float) -> str:
    """A line of a run's story, with its time in seconds since the pull began."""
    at, _, text = line.partition(" ")
    return f"{float(at) - began:.3f} {text}"

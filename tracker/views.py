"""Views of the tracker's state for people: nodes, swarms, status, as JSON-ready objects."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import p2pcache
from p2pcache.core.coordinator.swarm_state import SwarmTracker
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.host.kubernetes_labels import VALUE_DIGITS, label_key
from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.settings import REMEMBERED_S
from p2pcache.errors import NotFound
from p2pcache.ids import NodeId, Ref, format_node
from p2pcache.io.clock import Clock
from p2pcache.io.origins.public_words import openly
from p2pcache.tracker.catalog import Catalog

ROWS_S = 0.005  # of rows at once
MAX_MEMBERS = 2000  # of one swarm in one answer: half a megabyte
MAX_MODELS = 2000  # of one node in one answer, the same


class Views:
    """Read-only views of the tracker's state."""

    def __init__(self, tracking: TrackerState, catalog: Catalog, clock: Clock) -> None:
        self.connected: Callable[[], int] = lambda: 0
        self.warnings: Callable[[], list[str]] = list
        self.pool_state: Callable[[NodeId], tuple[str, int]] = lambda _node: ("", 0)
        self.kept: Callable[[], dict[str, tuple[int, int]]] = dict
        """Copies of each model that is kept, and those that are wanted, by digest."""
        self.doubts: Callable[[], list[str]] = list  # whether this is the active tracker
        self._tracking = tracking
        self._catalog = catalog
        self._clock = clock
        self._started = clock.now()

    def reasons(self) -> list[str]:
        """Why the tracker isn't ready, without storage's own words; empty when it is. The log has those."""
        trouble = self._catalog.trouble
        return self.doubts() + ([] if trouble is None else [f"origin: {openly(trouble)}"])

    async def nodes(self) -> dict[str, object]:
        """Every member, by id, and the nodes that are gone within the last hour, the latest first."""
        now, breaks = self._clock.now(), Breaks()
        unreached = self._tracking.unreached()
        rows = []
        for node, n in sorted(self._tracking.registry.nodes.items()):
            drain, kept = self.pool_state(node)
            row = _node_row(node, n, now, unreached=node in unreached)
            rows.append(row | {"drain": drain, "kept_bytes": kept})
            await breaks.after_row()
        gone = []
        for node, one in self._tracking.registry.departed_since(now - REMEMBERED_S).items():
            gone.append({
                "node": format_node(node), "name": one.said.name, "address": one.member.address,
                "rack": one.member.rack, "site": one.member.site, "version": one.said.version,
                "lost": one.lost, "gone_s": round(max(0.0, now - one.gone_at), 3),
            })  # fmt: skip
            await breaks.after_row()
        return {"nodes": rows, "gone": gone[::-1]}

    async def node(self, node: NodeId) -> dict[str, object]:
        """One member with its models, the least complete first.

        Raises:
            NotFound: it is no member.
        """
        record = self._tracking.registry.nodes.get(node)
        if record is None:
            raise NotFound("no member has this id; GET /v1/nodes lists them")
        now, breaks = self._clock.now(), Breaks()
        shares = []
        for digest in list(record.digests):
            if (held := self._member_of(digest, node)) is not None:
                shares.append((held.share_of(node), digest))
            await breaks.after_row()
        shares.sort()
        rows = []
        for _, digest in shares[:MAX_MODELS]:
            if (swarm := self._member_of(digest, node)) is not None:  # it may leave meanwhile
                ledger = swarm.ledger
                rows.append({
                    "digest": digest, "label": ledger.label, "bytes": ledger.total_bytes,
                    "stopped_at_run": swarm.doubts.stopped_at_run, **self._progress(swarm, node, now),
                })  # fmt: skip
            await breaks.after_row()
        row = _node_row(node, record, now, unreached=node in self._tracking.unreached())
        return {**row, "held": rows, "left_out": max(0, len(shares) - MAX_MODELS)}

    def _member_of(self, digest: str, node: NodeId) -> SwarmTracker | None:
        swarm = self._tracking.swarms.get(digest)
        return swarm if swarm is not None and node in swarm.roster.members else None

    async def swarms(self) -> dict[str, object]:
        """Every swarm, by digest."""
        now, breaks, kept = self._clock.now(), Breaks(), self.kept()
        rows = []
        for _, swarm in sorted(self._tracking.swarms.items()):
            rows.append(await _row(swarm, now, breaks) | _copies(kept.get(swarm.digest)))
        return {"swarms": rows}

    async def swarm(self, digest: str) -> dict[str, object]:
        """One swarm with its members, the least complete first.

        Raises:
            NotFound: no member has or wants it.
        """
        swarm = self._tracking.swarms.get(digest)
        if swarm is None:
            raise NotFound("no member has or wants this model; GET /v1/swarms lists them")
        breaks = Breaks()
        shares = []
        for node, record in list(swarm.roster.members.items()):
            shares.append((record.have.bit_count(), node))
            await breaks.after_row()
        shares.sort()
        rows, now = [], self._clock.now()
        for _, node in shares[:MAX_MEMBERS]:
            if node in swarm.roster.members:  # it may leave meanwhile
                holder = self._holder(swarm, node)[1]
                rows.append({**holder, **self._progress(swarm, node, now)})
            await breaks.after_row()
        left_out = max(0, len(shares) - MAX_MEMBERS)
        row = await _row(swarm, now, breaks) | _copies(self.kept().get(swarm.digest))
        return {**row, "members": rows, "left_out": left_out}

    def _progress(self, swarm: SwarmTracker, node: NodeId, now: float) -> dict[str, object]:
        taken = swarm.ledger.taken_by(node)
        share, pull = swarm.share_of(node), swarm.ledger.pulls.get(node)
        record = swarm.roster.members[node]
        return {
            "share": round(share, 4), "complete": share == 1.0,
            "leases": len(record.runs), "shunned": record.banned,
            "bytes_peers": taken[0], "bytes_origin": taken[1], "bytes_local": taken[2],
            "pulling_s": None if pull is None else round(now - pull.since, 1),
            "rate": 0 if pull is None else round(pull.rate(taken, now)),
        }  # fmt: skip

    async def digest_of(self, ref: Ref) -> str:
        """What a ref names now.

        Raises:
            NotFound: no such tag.
            OriginUnavailable, Unreachable: the tag can't be looked up.
        """
        return ref.digest or (await self._catalog.tag(ref)).digest

    async def locate(self, ref: Ref, digest: str) -> dict[str, object]:
        """Which members have a model, or a part of it; the most complete first.

        Args:
            ref: as it was asked for.
            digest: what it names.
        """
        swarm, breaks = self._tracking.swarms.get(digest), Breaks()
        rows = []
        for node in () if swarm is None else list(swarm.roster.members):
            if swarm is not None and node in swarm.roster.members:  # it may leave meanwhile
                rows.append(self._holder(swarm, node))
            await breaks.after_row()
        rows.sort(key=lambda row: (-row[0], row[1]["name"], row[1]["node"]))
        return {
            "ref": str(ref), "digest": digest,
            "label": {} if ref.digest else {label_key(ref): digest[:VALUE_DIGITS]},
            "nodes": [row for share, row in rows if share > 0],
            "getting": 0 if swarm is None else len(swarm.roster.pulling - {*swarm.roster.complete}),
        }  # fmt: skip

    def _holder(self, swarm: SwarmTracker, node: NodeId) -> tuple[float, dict[str, Any]]:
        record = self._tracking.registry.nodes[node]
        share = swarm.share_of(node)
        return share, {
            "node": format_node(node), "name": record.said.name, "address": record.member.address,
            "rack": record.member.rack, "site": record.member.site, "connected": record.connected,
            "complete": share == 1.0, "share": round(share, 4),
        }  # fmt: skip

    async def status(self) -> dict[str, object]:
        """The tracker's state on one screen."""
        totals = self._tracking.totals()
        return {
            "version": p2pcache.__version__, "role": "active", "epoch": self._tracking.epoch,
            "uptime_s": round(self._clock.now() - self._started, 1),
            "ready": not self.reasons(), "reasons": self.reasons(),
            "warnings": self.warnings(),
            "origin": self._catalog.url, "members": len(self._tracking.registry.nodes),
            "connected": self.connected(), "swarms": len(self._tracking.swarms),
            "leases_granted": totals["granted"], "rescues": totals["rescues"], "polls": totals["polls"],
        }  # fmt: skip


class Breaks:
    """Lets the loop do other work every few milliseconds while many rows are made."""

    def __init__(self) -> None:
        self._until = time.monotonic() + ROWS_S

    async def after_row(self) -> None:
        """A row is made."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + ROWS_S


def _node_row(node: NodeId, n: Node, now: float, *, unreached: bool) -> dict[str, object]:
    return {
        "node": format_node(node), "name": n.said.name, "address": n.member.address, "rack": n.member.rack,
        "site": n.member.site, "version": n.said.version, "models": len(n.digests),
        "cached_bytes": n.beat.cached_bytes, "free_bytes": n.beat.free_bytes,
        "limit_bytes": n.beat.quota_bytes or n.beat.cached_bytes + n.beat.free_bytes, "load": n.beat.load,
        "connected": n.connected, "last_seen_s": round(max(0.0, now - n.last_seen), 3),
        "unreached": unreached,
    }  # fmt: skip


def _copies(kept: tuple[int, int] | None) -> dict[str, object]:
    """Copies of the part that has the fewest, and those that are wanted, of a model that is kept."""
    return {"keep": None if kept is None else {"have": kept[0], "target": kept[1]}}


async def _row(swarm: SwarmTracker, now: float, breaks: Breaks) -> dict[str, object]:
    book, roster, ledger = swarm.book, swarm.roster, swarm.ledger
    runs, missing, rate = 0, 0, 0.0
    for member in list(roster.members.values()):
        has = member.have.bit_count()
        runs += has
        if (pull := ledger.pulls.get(member.node)) is not None:
            missing += book.run_count - has
            rate += pull.rate(ledger.taken_by(member.node), now)
        await breaks.after_row()
    return {
        "digest": swarm.digest, "label": ledger.label, "bytes": ledger.total_bytes,
        "bytes_origin": ledger.taken.origin, "bytes_peers": ledger.taken.peers, "bytes_local": ledger.taken.local,
        "alpha": None if ledger.alpha is None else round(ledger.alpha, 4),
        "share": round(runs / max(1, book.run_count * len(roster.members)), 4) if book.run_count else 1.0,
        "members": len(roster.members), "complete": len(roster.complete),
        "wanting": len(book.readers.working), "runs": book.run_count, "free": book.free.bit_count(),
        "leased": len(book.leases), "done": book.done.bit_count(), "granted": book.granted,
        "rescues": book.regranted, "polls": swarm.lost_runs.polls, "stopped_at_run": swarm.doubts.stopped_at_run,
        "holding": swarm.barrier.holds(now), "shunned": len(swarm.banned), "pulling": len(ledger.pulls),
        "missing_bytes": round(ledger.total_bytes * missing / max(1, book.run_count)),
        "rate": round(rate), "moved_peers": ledger.moved.peers, "moved_origin": ledger.moved.origin,
    }  # fmt: skip

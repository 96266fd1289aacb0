"""Views of the tracker's state for people: nodes, swarms, status, as JSON-ready objects."""

from collections.abc import Callable
from typing import Any

import p2pcache
from p2pcache.core.coordinator.swarm_state import TrackedSwarm
from p2pcache.core.coordinator.tracker_state import Tracking
from p2pcache.core.host.kubernetes_labels import VALUE_DIGITS, label_key
from p2pcache.errors import NotFound
from p2pcache.ids import NodeId, Ref, format_node
from p2pcache.io.clock import Clock
from p2pcache.io.origins.public_words import openly
from p2pcache.tracker.catalog import Catalog

MAX_MEMBERS = 2000  # of one swarm in one answer: half a megabyte


class Views:
    """Read-only views of the tracker's state."""

    def __init__(self, tracking: Tracking, catalog: Catalog, clock: Clock) -> None:
        self.connected: Callable[[], int] = lambda: 0
        self.warnings: Callable[[], list[str]] = list
        self._tracking = tracking
        self._catalog = catalog
        self._clock = clock
        self._started = clock.now()

    def reasons(self) -> list[str]:
        """Why the tracker isn't ready, without storage's own words; empty when it is. The log has those."""
        trouble = self._catalog.trouble
        return [] if trouble is None else [f"origin: {openly(trouble)}"]

    def nodes(self) -> dict[str, object]:
        """Every member, by id."""
        now = self._clock.now()
        unreached = self._tracking.unreached(now)
        rows = [
            {
                "node": format_node(node), "name": n.name, "address": n.member.address, "rack": n.member.rack,
                "site": n.member.site, "version": n.version, "models": len(n.digests),
                "cached_bytes": n.cached_bytes, "free_bytes": n.free_bytes, "load": n.load,
                "connected": n.connected, "last_seen_s": round(max(0.0, now - n.last_seen), 3),
                "unreached": node in unreached,
            }
            for node, n in sorted(self._tracking.registry.nodes.items())
        ]  # fmt: skip
        return {"nodes": rows}

    def swarms(self) -> dict[str, object]:
        """Every swarm, by digest."""
        now = self._clock.now()
        rows = [_row(swarm, now) for _, swarm in sorted(self._tracking.swarms.items())]
        return {"swarms": rows}

    def swarm(self, digest: str) -> dict[str, object]:
        """One swarm with its members, the least complete first.

        Raises:
            NotFound: no member has or wants it.
        """
        swarm = self._tracking.swarms.get(digest)
        if swarm is None:
            raise NotFound("no member has or wants this model; GET /v1/swarms lists them")
        shares = swarm.roster.have
        nodes = sorted(swarm.roster, key=lambda node: (shares[node].bit_count(), node))
        rows = [self._member(swarm, node) for node in nodes[:MAX_MEMBERS]]
        left_out = len(nodes) - len(rows)
        return {**_row(swarm, self._clock.now()), "members": rows, "left_out": left_out}

    def _member(self, swarm: TrackedSwarm, node: NodeId) -> dict[str, Any]:
        peers, origin, local = swarm.ledger.of(node)
        return {
            **self._holder(swarm, node)[1], "leases": len(swarm.book.runs_of(node)),
            "shunned": swarm.roster.is_shunned(node),
            "bytes_peers": peers, "bytes_origin": origin, "bytes_local": local,
        }  # fmt: skip

    async def locate(self, ref: Ref) -> dict[str, object]:
        """Which members have a model, or a part of it; the most complete first.

        Raises:
            NotFound: no such tag.
            OriginUnavailable, Unreachable: the tag can't be looked up.
        """
        digest = ref.digest or (await self._catalog.tag(ref)).digest
        swarm = self._tracking.swarms.get(digest)
        rows = [] if swarm is None else [self._holder(swarm, node) for node in swarm.roster]
        rows.sort(key=lambda row: (-row[0], row[1]["name"], row[1]["node"]))
        return {
            "ref": str(ref), "digest": digest,
            "label": {} if ref.digest else {label_key(ref): digest[:VALUE_DIGITS]},
            "nodes": [row for share, row in rows if share > 0],
            "getting": 0 if swarm is None else len(swarm.roster.pulling - {*swarm.roster.complete}),
        }  # fmt: skip

    def _holder(self, swarm: TrackedSwarm, node: NodeId) -> tuple[float, dict[str, Any]]:
        record = self._tracking.registry.nodes[node]
        runs = swarm.book.run_count
        share = swarm.roster.have[node].bit_count() / runs if runs else 1.0
        return share, {
            "node": format_node(node), "name": record.name, "address": record.member.address,
            "rack": record.member.rack, "site": record.member.site, "connected": record.connected,
            "complete": share == 1.0, "share": round(share, 4),
        }  # fmt: skip

    def status(self) -> dict[str, object]:
        """The tracker's state on one screen."""
        totals = self._tracking.totals()
        return {
            "version": p2pcache.__version__, "epoch": self._tracking.epoch,
            "uptime_s": round(self._clock.now() - self._started, 1),
            "ready": not self.reasons(), "reasons": self.reasons(),
            "warnings": self.warnings(),
            "origin": self._catalog.url, "members": len(self._tracking.registry.nodes),
            "connected": self.connected(), "swarms": len(self._tracking.swarms),
            "leases_granted": totals.granted, "rescues": totals.rescues, "polls": totals.polls,
        }  # fmt: skip


def _row(swarm: TrackedSwarm, now: float) -> dict[str, object]:
    book, roster, ledger = swarm.book, swarm.roster, swarm.ledger
    runs = sum(have.bit_count() for have in roster.have.values())
    return {
        "digest": swarm.digest, "label": ledger.label, "bytes": ledger.total_bytes,
        "bytes_origin": ledger.origin, "bytes_peers": ledger.peers, "bytes_local": ledger.local,
        "alpha": None if ledger.alpha is None else round(ledger.alpha, 4),
        "share": round(runs / max(1, book.run_count * len(roster)), 4) if book.run_count else 1.0,
        "members": len(roster), "complete": len(roster.complete),
        "wanting": len(book.readers), "runs": book.run_count, "free": book.free.bit_count(),
        "leased": len(book.leases), "done": book.done.bit_count(), "granted": book.granted,
        "rescues": book.rescues, "polls": swarm.audit.polls, "stopped_at_run": book.stopped,
        "holding": swarm.hold.holds(now),
    }  # fmt: skip

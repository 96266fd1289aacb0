"""What is told of all that is kept: of each wish how it stands, of each node what it is to keep."""

from collections.abc import Callable

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.format.keep_record import KeepRecord
from p2pcache.core.pool.intent import Key
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.progress import Progress
from p2pcache.ids import NodeId, Ref, format_node
from p2pcache.io.clock import Clock
from p2pcache.tracker.pool.repair_notes import RepairNotes
from p2pcache.tracker.pool.requests import wish_text
from p2pcache.tracker.pool.wishes import Wishes


class KeptRows:
    """Rows for people and programs, of the wishes and the keeper as they are."""

    def __init__(
        self,
        tracking: TrackerState,
        wishes: Wishes,
        keeper: Keeper,
        repairs: RepairNotes,
        clock: Clock,
        *,
        chosen: Callable[[KeepRecord], int],
    ) -> None:
        """Rows of a tracker that begins now.

        Args:
            tracking: what the members have.
            wishes: what operators asked for.
            keeper: how that stands.
            repairs: of all that is kept.
            clock: of the keeper's times.
            chosen: how many nodes that are here a record's selector chooses.
        """
        self._tracking = tracking
        self._wishes = wishes
        self._keeper = keeper
        self._repairs = repairs
        self._clock = clock
        self._chosen = chosen

    def kept_and_drained(self) -> dict[str, object]:
        """Everything that is kept, and each node that is drained."""
        drains = [
            {"node": format_node(node), "name": record.name, "made": record.since,
             "kept_bytes": self._keeper.kept_bytes(node), "here": node in self._tracking.registry.nodes}
            for node, record in sorted(self._wishes.drains.items())
        ]  # fmt: skip
        return {"keeps": [self.row(ref) for ref in sorted(self._wishes.keeps)], "drains": drains}

    def name(self, node: NodeId) -> str:
        """What a node calls itself, or called itself when it was drained; "": it isn't known."""
        registry = self._tracking.registry
        record = registry.nodes.get(node) or registry.departed.get(node)
        if record is not None:
            return record.said.name
        return self._wishes.drains[node].name if node in self._wishes.drains else ""

    def node_state(self, node: NodeId) -> tuple[str, int]:
        """Whether a node is "draining" or "drained", or "", and the bytes that it is ordered to keep."""
        if node not in self._wishes.drains:
            return "", self._keeper.placed_bytes(node)
        kept = self._keeper.kept_bytes(node)
        return ("draining" if kept else "drained"), kept

    def figures(self) -> dict[str, int]:
        """Counts for metrics: models that are kept, those below their target, bytes that lack, refusals of nodes."""
        found = [intent.progress for intent in self._keeper.intents.values()]
        known = [progress for progress in found if progress is not None]
        return {
            "models": len(self._wishes.keeps),
            "below_target": sum(p.copies < p.target or not p.target for p in known)
            + len(self._wishes.keeps) - len(known),
            "missing_bytes": sum(p.missing_bytes for p in known),
            "refusals": sum(len(p.refusals) for p in known),
        }  # fmt: skip

    def unseen(self) -> list[Key]:
        """Wishes of which nothing is known yet, though nothing is in the way."""
        known = [ref.tag_key for ref in self._wishes.keeps if ref not in self._wishes.troubles]
        return [key for key in known if self._progress(key) is None]

    def row(self, ref: Ref) -> dict[str, object]:
        """How one wish stands.

        `tracker_s`: since this tracker began; `waits_s`: until it makes copies of what nodes that are away may have.
        """
        now, began = self._clock.now(), self._keeper.began
        record, digest = self._wishes.keeps[ref], self._wishes.digests.get(ref, "")
        swarm = self._tracking.swarms.get(digest)
        row: dict[str, object] = {
            "ref": ref.short, "spelled": ref.full_name if swarm is None else swarm.ledger.name_as_pushed(ref),
            "namespace": ref.namespace, "digest": digest,
            "bytes": self._wishes.sizes.get(digest, 0), "wish": wish_text(record),
            "copies": record.copies, "whole": record.whole, "everywhere": record.everywhere,
            "nodes": record.nodes, "made": record.since, "trouble": self._wishes.troubles.get(ref, ""),
            "tracker_s": round(now - began, 1), "waits_s": 0.0,
        }  # fmt: skip
        progress = self._progress(ref.tag_key)
        if progress is None:
            return row | {"state": "unknown", "have": 0, "target": record.copies, "missing_bytes": 0,
                          "missing_places": 0, "holders": 0, "refused": [], "repairs": []}  # fmt: skip
        refused = [
            {"node": format_node(node), "name": self.name(node), "why": kept.refused, "detail": kept.detail}
            for node, kept in sorted(progress.refusals.items())
        ]  # fmt: skip
        # Of a wish for all nodes those count that have come: just after a takeover these are few.
        sure = not record.everywhere or self._keeper.settled(now)
        state = (
            "kept" if not progress.missing_bytes and progress.target and sure
            else "waiting" if progress.waits
            else "no nodes" if not progress.target or (record.nodes and not self._chosen(record))
            else "no room" if progress.missing_places
            else "arriving"
        )  # fmt: skip
        return row | {
            "waits_s": round(max(0.0, began + self._keeper.grace_s - now), 1) if state == "waiting" else 0.0,
            "state": state, "have": progress.copies, "target": progress.target,
            "missing_bytes": progress.missing_bytes, "missing_places": progress.missing_places,
            "holders": progress.nodes, "refused": refused,
            "repairs": [
                {"began": one.began, "ended": one.ended, "bytes": one.moved_bytes}
                for one in self._repairs.rows(ref.tag_key)
            ],
        }  # fmt: skip

    def _progress(self, key: Key) -> Progress | None:
        intent = self._keeper.intents.get(key)
        return None if intent is None else intent.progress

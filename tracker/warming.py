"""Answers the question "warm": chooses nodes for a model and tells them to fetch it.

It does so once. A node that loses the model later is not told again.
"""

import asyncio
import logging
import random
from collections.abc import Mapping

import msgspec

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.format import manifest as manifests
from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.replica_placement import choose
from p2pcache.core.protocol import messages as m
from p2pcache.errors import UsageError
from p2pcache.ids import NodeId, Ref, format_node
from p2pcache.io import pools
from p2pcache.io.clock import Clock
from p2pcache.io.tasks import Turns
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.node_questions import NodeQuestions

_log = logging.getLogger(__name__)

TOLD_S = 15.0  # for one node to resolve the ref, read the manifest and reserve the space
ALL_S = 40.0  # for all rounds, when nodes refuse; the asking agent waits longer
MAX_REPLICAS = 100_000  # more than any cluster has nodes


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a "warm"."""

    ref: str
    replicas: int


class Warming:
    """Chooses nodes, tells them, and gathers their answers."""

    def __init__(
        self, tracking: TrackerState, catalog: Catalog, clock: Clock, of_nodes: NodeQuestions
    ) -> None:
        self._tracking = tracking
        self._catalog = catalog
        self._clock = clock
        self._of_nodes = of_nodes
        self._turns = Turns()

    async def warm(self, text: str) -> dict[str, object]:
        """Warm a model; return the answer of "warm" in docs/protocol.md.

        Raises:
            UsageError: the text is no wish.
            NotFound, OriginUnavailable, Unreachable: the model can't be looked up.
        """
        try:
            wish = msgspec.json.decode(text, type=Wish)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"not a warm: {error}") from None
        if not 0 < wish.replicas <= MAX_REPLICAS:
            raise UsageError("replicas is a number of nodes, 1 or more")
        ref = Ref.parse(wish.ref)
        digest = ref.digest or (await self._catalog.tag(ref)).digest
        encoded = await self._catalog.manifest(digest)
        manifest = await pools.WORK.run(manifests.decode, encoded, digest)
        async with self._turns.of(digest):  # two questions at once must not choose twice the nodes
            before = self._tracking.replica_placement(digest)
            told = await self._tell_nodes(ref, digest, wish.replicas, manifest.size_bytes)
        rows = [
            _named(n, record) | {"state": "had" if n in before.complete else "getting"}
            for n, record in before.holders.items()
        ]  # fmt: skip
        rows += [_answer(node, record, said) for node, record, said in told]
        have = sum(row["state"] != "refused" for row in rows)
        _log.info("warm %s: %d of %d nodes have or get it", ref, have, wish.replicas)
        return {
            "ref": str(ref), "digest": digest, "bytes": manifest.size_bytes,
            "replicas": wish.replicas, "have": have, "older": before.older, "nodes": rows,
        }  # fmt: skip

    async def _tell_nodes(
        self, ref: Ref, digest: str, replicas: int, size_bytes: int
    ) -> list[tuple[NodeId, Node, m.NodeAnswer]]:
        """Tell as many nodes as are missing, and further ones in place of those that refuse."""
        dice = random.Random(int(digest[:16], 16) ^ self._tracking.epoch)
        told: dict[NodeId, tuple[NodeId, Node, m.NodeAnswer]] = {}
        deadline = self._clock.now() + ALL_S
        while (left_s := deadline - self._clock.now()) > 0:
            spread = self._tracking.replica_placement(digest)
            fresh = {node: record for node, record in spread.others.items() if node not in told}
            good = {node for node, (_, _, said) in told.items() if not said.code}
            missing = replicas - len(spread.holders.keys() | good)
            # The choice takes long in a large cluster.
            chosen = await pools.STEPS.run(
                choose, fresh, spread.holders.values(), missing, size_bytes, dice
            )
            if not chosen:
                break
            limit_s = min(TOLD_S, left_s)
            ask = self._of_nodes.ask_node
            answers = await asyncio.gather(*(ask(n, "warm", 0, str(ref), limit_s) for n in chosen))
            for node, said in zip(chosen, answers, strict=True):
                told[node] = (node, fresh[node], said)
                if not said.code:
                    self._tracking.on_warming(node, digest)
        return list(told.values())


def _answer(node: NodeId, record: Node, said: m.NodeAnswer) -> dict[str, object]:
    if said.code:
        refusal: Mapping[str, object] = {"code": said.code, "message": said.message[:500]}
        return _named(node, record) | {"state": "refused", **refusal}
    return _named(node, record) | {"state": said.data[:20].decode(errors="replace")}


def _named(node: NodeId, record: Node) -> dict[str, object]:
    return {
        "node": format_node(node), "name": record.said.name, "address": record.member.address,
        "rack": record.member.rack, "site": record.member.site,
    }  # fmt: skip

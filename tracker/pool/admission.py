"""Answers the question "admit": may a node take one more copy of a model, under its namespace's quota?"""

from collections.abc import Mapping

import msgspec

from p2pcache.core.coordinator.swarm_state import SwarmTracker
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.pool.namespace_quotas import parse_quotas, refusal
from p2pcache.errors import NoSpace, UsageError
from p2pcache.ids import NodeId, Ref, is_digest, parse_node
from p2pcache.io.clock import Clock

PROMISED_S = 60.0  # until a node that was admitted has announced the model
MAX_PROMISES = 100_000  # nodes that were admitted and haven't announced it yet; more are refused
KEPT_S = 1.0  # a sum over all copies is used for this long: a storm asks once a node


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The text of an "admit"."""

    ref: str
    digest: str
    bytes: int
    node: str


class Admission:
    """Adds up what the pool's copies take, and what was promised to nodes that will announce it."""

    def __init__(self, tracking: TrackerState, quotas: str, clock: Clock) -> None:
        """Nothing is promised yet.

        Args:
            tracking: what members announced.
            quotas: as the setting has it.
            clock: of the promises.

        Raises:
            UsageError: the setting makes no sense.
        """
        self.quotas = parse_quotas(quotas)
        self._tracking = tracking
        self._clock = clock
        self._promised: dict[tuple[NodeId, str], tuple[str, int, float]] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def admit(self, text: str) -> None:
        """Admit a copy, or refuse it.

        Raises:
            UsageError: the text is no wish.
            NoSpace: the quota of the namespace would be exceeded.
        """
        try:
            wish = msgspec.json.decode(text, type=Wish)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"not an admit: {error}") from None
        if not is_digest(wish.digest) or wish.bytes < 0:
            raise UsageError("an admit names a manifest's digest and a size")
        namespace, node = Ref.parse(wish.ref).namespace, parse_node(wish.node)
        if namespace not in self.quotas:
            return
        now = self._clock.now()
        self._forget(now)
        if (node, wish.digest) in self._promised or self._counted(node, wish.digest, namespace):
            return
        held = self.held_bytes(namespace) + sum(
            size for space, size, _ in self._promised.values() if space == namespace
        )
        if why := refusal(self.quotas, namespace, held, wish.bytes):
            raise NoSpace(why)
        if len(self._promised) >= MAX_PROMISES:
            raise NoSpace("too many nodes begin to fetch models at once; try again in a minute")
        self._promised[node, wish.digest] = (namespace, wish.bytes, now + PROMISED_S)

    def admit_kept(
        self, namespace: str, digest: str, size_bytes: int, wanted: Mapping[str, int]
    ) -> None:
        """Admit that copies of a model are kept, or refuse it. Copies that are there count, whoever brought them.

        Args:
            namespace: of the model.
            digest: of its manifest.
            size_bytes: of all copies that are to be kept.
            wanted: bytes of all copies that other wishes for the namespace want, by manifest digest.

        Raises:
            NoSpace: the quota of the namespace would be exceeded.
        """
        swarms = self._tracking.swarms.items()
        held = {d: _bytes_of(swarm) for d, swarm in swarms if _namespace(swarm) == namespace}
        here, others = held.get(digest, 0), (held.keys() | wanted.keys()) - {digest}
        taken = here + sum(max(held.get(d, 0), wanted.get(d, 0)) for d in others)
        coming = max(0, size_bytes + wanted.get(digest, 0) - here)
        if why := refusal(self.quotas, namespace, taken, coming, "these copies"):
            raise NoSpace(why)

    def held_bytes(self, namespace: str) -> int:
        """Bytes of all copies of a namespace's models; a copy under way counts as a whole one."""
        now = self._clock.now()
        until, held = self._sums.get(namespace, (0.0, 0))
        if until <= now:
            swarms = list(self._tracking.swarms.values())
            held = sum(_bytes_of(one) for one in swarms if _namespace(one) == namespace)
            self._sums[namespace] = (now + KEPT_S, held)
        return held

    def _counted(self, node: NodeId, digest: str, namespace: str) -> bool:
        """Whether a node's copy is in the namespace's sum already. That of a push has no name yet."""
        swarm = self._tracking.swarms.get(digest)
        record = swarm.roster.members.get(node) if swarm is not None else None
        return (
            swarm is not None and record is not None and _namespace(swarm) == namespace
            and (record.pulls_all or node in swarm.roster.complete)
        )  # fmt: skip

    def _forget(self, now: float) -> None:
        over = [
            key for key, (namespace, _, until) in self._promised.items()
            if until <= now or self._counted(*key, namespace)
        ]  # fmt: skip
        for key in over:
            namespace, _, _ = self._promised.pop(key)
            self._sums.pop(namespace, None)


def _namespace(swarm: SwarmTracker) -> str:
    label = swarm.ledger.label
    try:
        return Ref.parse(label).namespace if label else ""
    except UsageError:
        return ""


def _bytes_of(swarm: SwarmTracker) -> int:
    """Bytes of all copies of one model. O(members that have a part)."""
    roster, size = swarm.roster, swarm.ledger.total_bytes
    whole = {*roster.complete} | roster.pulling
    shares = sum(swarm.share_of(node) for node in roster.members if node not in whole)
    return round(size * (len(whole) + shares))

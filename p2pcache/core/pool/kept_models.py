"""What a node is ordered to keep: the list as its parts come, and what becomes of models that leave it."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.format.manifest import MAX_CHUNKS
from p2pcache.core.protocol.keep_orders import (
    MAX_ORDERS,
    MAX_PARTS,
    MAX_RANGES,
    KeepOrder,
    KeepOrders,
)
from p2pcache.core.swarm.commands import ALL
from p2pcache.errors import RemoteProtocolError, UsageError
from p2pcache.ids import Ref, RunSet


class KeptModel(NamedTuple):
    """One model that is ordered here, or was."""

    ref: Ref  # its tag, and the digest
    ordered: (
        RunSet  # runs that are to be here; `ALL` where the whole model is; 0: it is ordered no more
    )
    whole: bool  # it is shown under its tag
    brought: bool  # nothing of it was here before: what is ordered no more goes
    leaving: RunSet = 0  # runs that were ordered and are not any more
    shown_at: float = 0.0  # unix seconds: when an order had it shown; 0: none did

    @property
    def digest(self) -> str:
        """Of its manifest."""
        return self.ref.digest or ""


class OrderUpdate:
    """The list that is coming, part by part."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._parts: list[KeepOrders] = []

    def take_part(self, part: KeepOrders) -> list[KeepOrder] | None:
        """Take the next part; returns the whole list with the last one, else None.

        Raises:
            RemoteProtocolError: no honest tracker sends this.
        """
        before, self._parts = self._parts, []
        check_part(part)
        parts = [*(before if part.part else ()), part]
        if len(parts) != part.part + 1:
            return None  # of a list whose beginning was no good; another one will come
        if len(parts) < part.parts:
            self._parts = parts
            return None
        return [order for each in parts for order in each.orders]


def check_part(part: KeepOrders) -> None:
    """Check what a tracker sends.

    Raises:
        RemoteProtocolError: no honest tracker sends this.
    """
    if not 0 <= part.part < part.parts <= MAX_PARTS or len(part.orders) > MAX_ORDERS:
        raise RemoteProtocolError(f"part {part.part} of {part.parts} of a list to keep")
    if sum(len(order.ranges) for order in part.orders) > MAX_RANGES:
        raise RemoteProtocolError("too many ranges in a list to keep")
    for order in part.orders:
        ref_of(order)
        before = 0
        for first, end in order.ranges:
            if not before <= first < end <= MAX_CHUNKS:
                raise RemoteProtocolError(f"runs [{first}, {end}) to keep")
            before = end


def ref_of(order: KeepOrder) -> Ref:
    """The model of an order, by tag and digest.

    Raises:
        RemoteProtocolError: it names none.
    """
    text = f"{order.namespace}/{order.name}:{order.tag}@blake3:{order.manifest_digest}"
    try:
        return Ref.parse(text)
    except UsageError as error:
        raise RemoteProtocolError(f"an order to keep {text[:80]!a}: {error}") from None


def take(
    before: Mapping[str, KeptModel], orders: Iterable[KeepOrder], present: Collection[str]
) -> dict[str, KeptModel]:
    """The models that are kept from now on, and those of which something is left to go.

    Args:
        before: those until now, by digest.
        orders: the new list; several of one digest add up.
        present: digests of the models that have bytes here.
    """
    pieces: dict[str, list[KeepOrder]] = {}
    for order in orders:
        pieces.setdefault(order.manifest_digest, []).append(order)
    after: dict[str, KeptModel] = {}
    for digest in (*pieces, *(before.keys() - pieces.keys())):
        listed = pieces.get(digest, [])
        known = before.get(digest)
        if known is None:
            known = KeptModel(ref_of(listed[0]), 0, whole=False, brought=digest not in present)
        whole = any(order.whole for order in listed)
        runs = ALL if whole else _union(listed)
        left = (known.leaving | known.ordered) & ~runs
        if listed or (known.brought and left):
            ref = ref_of(listed[0]) if listed else known.ref
            after[digest] = known._replace(ref=ref, ordered=runs, whole=whole, leaving=left)
    return after


def _union(orders: Iterable[KeepOrder]) -> RunSet:
    runs: RunSet = 0
    for order in orders:
        for first, end in order.ranges:
            runs |= bitset.full(end - first) << first
    return runs

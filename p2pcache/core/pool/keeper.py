"""What each node is ordered to keep, so that the intents of operators are and stay true.

A pure decider: intents and nodes go in, each node's list of orders comes out. `Placement` says where stripes are to be;
this adds time. A node that falls silent keeps its places for a while, for it mostly comes back. A node that is to give
a stripe up keeps its order until the others have it. When a name moves to another model, or whole copies are wanted
instead of parts, the orders before last until the new ones are carried out, unless there is no room for both.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from math import inf

from p2pcache.core.pool.intent import Intent, Key, PoolNode, Wish, begin_intent
from p2pcache.core.pool.progress import Progress, copies_of
from p2pcache.core.pool.settings import GRACE_S, LACKING_S, REFUSED_S, SETTLE_S
from p2pcache.core.pool.spots import Rooms, Spot, weights_of
from p2pcache.core.protocol.keep_orders import NO_SPACE, NOT_ALLOWED, QUOTA, KeepOrder, Kept
from p2pcache.ids import NodeId, RunSet

_FULL = frozenset({QUOTA, NO_SPACE, NOT_ALLOWED})  # such a node gets nothing more of the model


class Keeper:
    """Decides what each node keeps.

    Invariants: `_nodes` holds the nodes that are here, and those that are gone for less than the grace, which are in
    `_away`, too; each node's orders of an intent are the stripes that name it in `targets` or `former`; `_refusals` are
    of models in `_digests`.
    """

    def __init__(self, now: float, *, grace_s: float = GRACE_S, settle_s: float = SETTLE_S) -> None:
        """A keeper that knows no intent and no node.

        Args:
            now: seconds.
            grace_s: after a node fell silent.
            settle_s: in which the nodes of the tracker before have come.
        """
        self.grace_s = grace_s
        self.began = now
        self._settle_s = min(settle_s, grace_s)
        self.intents: dict[Key, Intent] = {}
        self._nodes: dict[NodeId, PoolNode] = {}
        self._away: dict[NodeId, float] = {}  # since when
        self._drained: frozenset[NodeId] = frozenset()
        self._weights: dict[NodeId, float] = {}
        self._rooms = Rooms()
        self._digests: set[str] = set()  # of all intents
        self._refusals: dict[tuple[str, NodeId], tuple[float, Kept]] = {}  # by manifest digest

    # -- what happens --------------------------------------------------------------------------------

    def on_wish(self, key: Key, wish: Wish | None, run_bytes: Collection[int] = ()) -> bool:
        """An intent is this from now on; None: it is over. Returns whether that is news.

        Args:
            key: its name.
            wish: what is wished.
            run_bytes: of each run of the model; needed when its digest is new.
        """
        intent = self.intents.get(key)
        if wish is None:
            if intent is None:
                return False
            del self.intents[key]
            for one in intent.in_force:
                one.placement.leave()
        elif intent is None or not intent.wish.is_cut_as(wish):
            self.intents[key] = self._begin(wish, run_bytes, intent)
        elif wish._replace(older=intent.wish.older) != intent.wish:
            intent.wish = wish
        else:
            return False
        self._digests = {one.wish.digest for one in self.intents.values()}
        for place in [place for place in self._refusals if place[0] not in self._digests]:
            del self._refusals[place]
        return True

    def on_nodes(
        self, nodes: Mapping[NodeId, PoolNode], now: float, *, drained: Collection[NodeId] = ()
    ) -> bool:
        """These nodes are here; returns whether places may change.

        Args:
            nodes: that understand orders.
            now: seconds.
            drained: nodes that are to give up what they keep, here or not.
        """
        before = self._seen()
        self._drained = frozenset(drained)
        gone = {node: self._away.get(node, now) for node in self._nodes.keys() - nodes.keys()}
        self._away = {n: since for n, since in gone.items() if since + self.grace_s > now}
        self._nodes = {**nodes, **{node: self._nodes[node] for node in self._away}}
        said = {n: (node.room_bytes, node.link_bytes_s) for n, node in self._nodes.items()}
        self._rooms.total = {n: room for n, (room, _) in said.items()}
        before_it, self._weights = self._weights, weights_of(said, self._weights)
        return before_it != self._weights or before != self._seen()

    def on_report(self, node: NodeId, kept: Kept, now: float) -> bool:
        """A node says how an ordered model stands there; returns whether places may change."""
        if kept.manifest_digest not in self._digests:
            return False
        place = kept.manifest_digest, node
        before = self._refusals.pop(place, None)
        if kept.refused:
            self._refusals[place] = now, kept
        known = before is not None and before[1].refused == kept.refused
        return bool(kept.refused in _FULL and not known)

    def review(
        self, key: Key, haves: Mapping[NodeId, RunSet], now: float, void: Collection[NodeId] = ()
    ) -> set[NodeId]:
        """Decide where an intent's stripes are to be; returns the nodes whose orders changed.

        Args:
            key: of the intent.
            haves: runs of the model that nodes have, which are here and deliver them.
            now: seconds.
            void: nodes that are here and of which others complain, so that what they have isn't known.
        """
        intent = self.intents[key]
        placement, wish = intent.placement, intent.wish
        had, full = placement.stripes.had_by(haves), self._full(intent, now)
        spots = self._spots(wish, full)
        before = list(placement.targets)
        waits = self._waits(wish, now)
        copies = wish.copies or len(spots)
        for node in full:  # it gives up what it doesn't have
            placement.remove_all(node, but=had.get(node, 0))
        placement.settle(copies, spots, had, may_copy=not waits)
        ended = self._make_way(intent, spots, copies)
        if ended:
            placement.settle(copies, spots, had, may_copy=not waits)
        intent.note_former(before)
        least = max(1, copies)  # where no node is chosen nobody has it, and nothing ends
        if waits or intent.progress is None or intent.progress.missing_bytes:
            intent.retain(self._of_present(had), least, every=waits)
        intent.end_former(had, least, {*self._away, *void})
        changed = ended | intent.give_orders()
        counted = [had[node] for node, spot in spots.items() if spot.present and node in had]
        # Of a wish for all nodes each that is away has its place, though it has no order before it is back.
        away = frozenset[NodeId]() if wish.copies else spots.keys() & self._away.keys()
        intent.progress = self._measure(intent, counted, copies, away, waits=waits)
        is_true = bool(copies) and not intent.progress.missing_bytes
        return changed | self._end_before(intent, haves, waits=waits, is_true=is_true)

    # -- what comes out ------------------------------------------------------------------------------

    def settled(self, now: float) -> bool:
        """Whether lists may be sent: the nodes that kept something for the tracker before have come.

        A list that lacks what a node keeps would end that order.
        """
        older = any(intent.wish.older for intent in self.intents.values())
        return not older or now >= self.began + self._settle_s

    def copies(self) -> dict[str, tuple[int, int]]:
        """Copies and target of each model, by digest; of several intents that of the one that wants the most."""
        known = [(i.wish.digest, i.progress) for i in self.intents.values() if i.progress]
        return {d: (p.copies, p.target) for d, p in sorted(known, key=lambda one: one[1].target)}

    def orders(self, node: NodeId) -> list[KeepOrder]:
        """A node's whole list."""
        found = []
        for key in sorted(self.intents):
            for intent in self.intents[key].in_force:
                if node in intent.orders:
                    whole = intent.wish.whole
                    ranges = () if whole else tuple(intent.ranges(node))
                    found.append(KeepOrder(*key, intent.wish.digest, ranges, whole))
        return found

    def placed_bytes(self, node: NodeId) -> int:
        """Bytes that have their place on a node."""
        return self._rooms.taken[node]

    def kept_bytes(self, node: NodeId) -> int:
        """Bytes that a node is to keep, or keeps until others have them."""
        return sum(
            intent.placement.stripes.sizes[stripe]
            for intent in chain.from_iterable(one.in_force for one in list(self.intents.values()))
            for stripe in intent.orders.get(node, ())
        )

    def next_wakeup(self, now: float) -> float:
        """When time alone changes something."""
        ends = [since + self.grace_s for since in self._away.values()]
        ends += [at + s for at, _ in self._refusals.values() for s in (LACKING_S, REFUSED_S)]
        ends += [self.began + self._settle_s, self.began + self.grace_s]
        return min((end for end in ends if end > now), default=inf)

    def check(self) -> None:
        """Assert the invariants."""
        assert self._away.keys() <= self._nodes.keys()
        assert {digest for digest, _ in self._refusals} <= self._digests
        taken = Counter[NodeId]()
        assert not any(one.before and one.before.before for one in self.intents.values())
        for intent in chain.from_iterable(one.in_force for one in self.intents.values()):
            intent.placement.check()
            taken.update(intent.placement.loads)
            for stripe, former in intent.former.items():
                assert not set(former) & set(intent.placement.targets[stripe])
        assert self._rooms.taken == taken

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, wish: Wish, run_bytes: Collection[int], before: Intent | None) -> Intent:
        """A new intent in place of the one `before`, the orders of which last for a while."""
        fresh = begin_intent(wish, run_bytes, self._rooms)
        if before is not None:
            fresh.released = before.released
            older, before.before = before.before, None
            if older is not None:
                # One that has ordered nothing yet leaves in force what was before it.
                before, ended = (before, older) if before.orders else (older, before)
                ended.placement.leave()
                fresh.released |= ended.orders.keys()
        elif wish.whole and wish.older:
            # Nodes may have parts: of copies that were on their way, or of a wish for parts that only the tracker
            # before us knew.
            before = begin_intent(wish._replace(whole=False), run_bytes, self._rooms)
        fresh.before = before
        return fresh

    def _waits(self, wish: Wish, now: float) -> bool:
        """Whether nodes may come back that have what is wished."""
        return wish.older and now < self.began + self.grace_s

    def _seen(self) -> dict[NodeId, tuple[object, ...]]:
        """What places depend on, of each node; its room only where that doesn't suffice."""
        return {
            n: (said.traits, n in self._drained, n in self._away, self._rooms.left(n) < 0)
            for n, said in self._nodes.items()
        }

    def _full(self, intent: Intent, now: float) -> set[NodeId]:
        """Nodes that said that they have no room for a model; sooner asked again where nobody else takes their part."""
        lacks = intent.progress is not None and intent.progress.missing_places
        since = now - (LACKING_S if lacks else REFUSED_S)
        return {
            node for (digest, node), (at, kept) in self._refusals.items()
            if digest == intent.wish.digest and kept.refused in _FULL and at > since
        }  # fmt: skip

    def _spots(self, wish: Wish, full: Collection[NodeId]) -> dict[NodeId, Spot]:
        """The nodes that a wish chooses; those that are `full` get nothing, as those that are away."""
        spots = {}
        for node, said in self._nodes.items():
            if node not in self._drained and wish.selector.chooses(said.traits):
                present = node not in self._away and node not in full
                spots[node] = Spot(said.traits.site, said.traits.rack, self._weights[node], present)
        return spots

    def _make_way(self, intent: Intent, spots: Mapping[NodeId, Spot], copies: int) -> set[NodeId]:
        """Where copies find no room beside those of the model before, these go at once; of which nodes."""
        placement, before = intent.placement, intent.before
        short = [targets for targets in placement.targets if len(targets) < copies]
        if before is None or not short:
            return set()
        size, gone = placement.stripes.largest, set[NodeId]()
        for node, load in list(before.placement.loads.items()):
            left = self._rooms.left(node)
            # A node that has its place for the new copies has room for both.
            lacks = node in spots and spots[node].present and any(node not in one for one in short)
            if load and lacks and left < size <= left + load:
                before.placement.remove_all(node)
                before.orders.pop(node, None)
                gone.add(node)
        return gone

    def _of_present(self, had: Mapping[NodeId, RunSet]) -> dict[NodeId, RunSet]:
        here = self._nodes.keys() - self._away.keys()
        return {node: some for node, some in had.items() if node in here}

    def _end_before(
        self, intent: Intent, haves: Mapping[NodeId, RunSet], *, waits: bool, is_true: bool
    ) -> set[NodeId]:
        """End the orders before an intent's when it is true; returns the nodes whose orders changed."""
        before = intent.before
        if before is None:
            return set()
        if waits and not is_true and not before.placement.loads:
            had = before.placement.stripes.had_by(haves)
            before.retain(self._of_present(had), 1, every=True)
            return before.give_orders()
        # Of a wish for all nodes those that come next may have parts.
        if (waits and not intent.wish.copies) or not is_true:
            return set()
        before.placement.leave()
        intent.before = None
        return set(before.orders)

    def _measure(
        self,
        intent: Intent,
        had: list[RunSet],
        copies: int,
        away: Collection[NodeId],
        *,
        waits: bool,
    ) -> Progress:
        stripes, targets = intent.placement.stripes, intent.placement.targets
        fewest, missing = copies_of(had, stripes, copies)
        return Progress(
            fewest, copies, missing,
            missing_places=sum(max(0, copies - len({*each, *away})) for each in targets),
            nodes=len(intent.orders),
            refusals={n: kept for (d, n), (_, kept) in self._refusals.items() if d == intent.wish.digest},
            waits=waits,
        )  # fmt: skip

"""What each node is ordered to keep, so that the intents of operators are and stay true.

A pure decider: intents and nodes go in, each node's list of orders comes out. `Placement` says where stripes are to be;
this adds time. A node that falls silent keeps its places for a while, for it mostly comes back. A node that is to give
a stripe up keeps its order until the others have it. When a name moves to another model, or whole copies are wanted
instead of parts, the orders before last until the new ones are carried out, unless there is no room for both.
"""

from collections.abc import Collection, Iterator, Mapping
from math import inf

from p2pcache.core import bitset
from p2pcache.core.pool.intent import Intent, Key, PoolNode, Wish, begin_intent
from p2pcache.core.pool.placement import Situation, Targets
from p2pcache.core.pool.progress import Progress, copies_of
from p2pcache.core.pool.settings import GRACE_S, LACKING_S, REFUSED_S, SETTLE_S
from p2pcache.core.pool.spots import Rooms, Spot, weights_of
from p2pcache.core.protocol.keep_orders import NO_SPACE, NOT_ALLOWED, QUOTA, KeepOrder, Kept
from p2pcache.ids import NodeId, RunIndex, RunSet

_FULL = frozenset({QUOTA, NO_SPACE, NOT_ALLOWED})  # such a node gets nothing more of the model


class Keeper:
    """Decides what each node keeps.

    Invariants: `_away` holds the nodes that are gone for less than the grace, `_nodes` those that are here; each
    node's orders of an intent are the stripes that name it in `targets` or `former`; `_refusals` are of models in
    `_digests`.
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
        self._intents: dict[Key, Intent] = {}
        self._fading: dict[Key, Intent] = {}  # before the present one; ends when that is true
        self._nodes: dict[NodeId, PoolNode] = {}
        self._away: dict[NodeId, tuple[float, PoolNode]] = {}
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
        news = self._take_in(key, wish, run_bytes)
        if news:
            self._digests = {intent.wish.digest for intent in self._intents.values()}
            gone = [place for place in self._refusals if place[0] not in self._digests]
            for place in gone:
                del self._refusals[place]
        return news

    def _take_in(self, key: Key, wish: Wish | None, run_bytes: Collection[int]) -> bool:
        intent = self._intents.get(key)
        known = intent is not None
        if intent is not None and (wish is None or _cut_anew(intent.wish, wish)):
            # One that has ordered nothing yet leaves in force what was before it.
            if key in self._fading and (wish is None or intent.orders):
                self._fading.pop(key).placement.leave(self._rooms)
            del self._intents[key]
            if wish is None or key in self._fading:
                intent.placement.leave(self._rooms)
            else:
                self._fading[key] = intent
            intent = None
        if wish is None:
            return known
        if intent is None:
            self._intents[key] = begin_intent(wish, run_bytes)
            if wish.whole and wish.older:
                # Nodes may have parts: of copies that were on their way, or of a wish for parts that only the tracker
                # before us knew.
                self._fading.setdefault(key, begin_intent(wish._replace(whole=False), run_bytes))
            return True
        if wish._replace(older=intent.wish.older) == intent.wish:
            return False
        intent.wish = wish
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
        for node in self._nodes.keys() - nodes.keys():
            self._away[node] = (now, self._nodes[node])
        for node in nodes:
            self._away.pop(node, None)
        for node in [n for n, (since, _) in self._away.items() if since + self.grace_s <= now]:
            del self._away[node]
        self._nodes = dict(nodes)
        said = {n: (node.room_bytes, node.link_bytes_s) for n, node in self._known()}
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
        intent = self._intents[key]
        placement, wish = intent.placement, intent.wish
        spots = self._spots(intent, now)
        before = list(placement.targets)
        waits = self._waits(wish, now)
        copies = wish.copies or len(spots)
        self._give_up_refused(intent, haves, now)
        situation = Situation(spots, haves, self._rooms, may_copy=not waits)
        placement.settle(copies, situation)
        ended = self._make_way(key, spots, copies)
        if ended:
            placement.settle(copies, situation)
        self._note_former(intent, before)
        least = max(1, copies)  # where no node is chosen nobody has it, and nothing ends
        had = placement.stripes.had_by(haves)
        if waits or intent.progress is None or intent.progress.missing_bytes:
            self._retain(intent, had, least, every=waits)
        self._end_former(intent, had, least, void)
        changed = ended | intent.give_orders()
        counted = [had[node] for node, spot in spots.items() if spot.present and node in had]
        intent.progress = self._measure(intent, counted, copies, waits=waits)
        return changed | self._fade(
            key, haves, now, is_true=bool(copies) and not intent.progress.missing_bytes
        )

    # -- what comes out ------------------------------------------------------------------------------

    def settled(self, now: float) -> bool:
        """Whether lists may be sent: the nodes that kept something for the tracker before have come.

        A list that lacks what a node keeps would end that order.
        """
        older = any(intent.wish.older for intent in self._intents.values())
        return not older or now >= self.began + self._settle_s

    def copies(self) -> dict[str, tuple[int, int]]:
        """Copies and target of each model, by digest; of several intents that of the one that wants the most."""
        known = [(i.wish.digest, i.progress) for i in self._intents.values() if i.progress]
        return {d: (p.copies, p.target) for d, p in sorted(known, key=lambda one: one[1].target)}

    def orders(self, node: NodeId) -> list[KeepOrder]:
        """A node's whole list."""
        found = []
        for key in sorted(self._intents):
            for intent in self._of(key):
                if node in intent.orders:
                    whole = intent.wish.whole
                    ranges = () if whole else tuple(intent.ranges(node))
                    found.append(KeepOrder(*key, intent.wish.digest, ranges, whole))
        return found

    def ranges(self, key: Key, node: NodeId) -> Iterator[tuple[RunIndex, RunIndex]]:
        """The runs of one model that a node is ordered to have, as (first, the one after the last)."""
        return self._intents[key].ranges(node)

    @property
    def keys(self) -> list[Key]:
        """All intents."""
        return sorted(self._intents)

    def wish(self, key: Key) -> Wish | None:
        """What is wished of a model."""
        intent = self._intents.get(key)
        return None if intent is None else intent.wish

    def progress(self, key: Key) -> Progress | None:
        """How far an intent is true, as of its last review."""
        return self._intents[key].progress

    def restless(self, key: Key) -> bool:
        """Whether an intent isn't true yet: its nodes are looked at more often."""
        intent = self._intents[key]
        return bool(intent.progress is None or intent.progress.missing_bytes or intent.former)

    def placed_bytes(self, node: NodeId) -> int:
        """Bytes that have their place on a node."""
        return self._rooms.taken.get(node, 0)

    def kept_bytes(self, node: NodeId) -> int:
        """Bytes that a node is to keep, or keeps until others have them."""
        total = 0
        for key in list(self._intents):
            for intent in self._of(key):
                sizes = intent.placement.stripes.sizes
                total += sum(sizes[stripe] for stripe in intent.orders.get(node, ()))
        return total

    def next_wakeup(self, now: float) -> float:
        """When time alone changes something."""
        ends = [since + self.grace_s for since, _ in self._away.values()]
        ends += [at + s for at, _ in self._refusals.values() for s in (LACKING_S, REFUSED_S)]
        ends += [self.began + self._settle_s, self.began + self.grace_s]
        return min((end for end in ends if end > now), default=inf)

    def check(self) -> None:
        """Assert the invariants."""
        assert not self._away.keys() & self._nodes.keys()
        assert {digest for digest, _ in self._refusals} <= self._digests
        taken: dict[NodeId, int] = {}
        assert self._fading.keys() <= self._intents.keys()
        for intent in (*self._intents.values(), *self._fading.values()):
            intent.placement.check()
            for node, load in intent.placement.loads.items():
                taken[node] = taken.get(node, 0) + load
            for stripe, former in intent.former.items():
                assert not set(former) & set(intent.placement.targets[stripe])
        assert self._rooms.taken == {node: load for node, load in taken.items() if load}

    # -- inside ------------------------------------------------------------------------------------

    def _of(self, key: Key) -> Iterator[Intent]:
        """An intent, and the one before it that still has orders."""
        yield self._intents[key]
        if key in self._fading:
            yield self._fading[key]

    def _waits(self, wish: Wish, now: float) -> bool:
        """Whether nodes may come back that have what is wished."""
        return wish.older and now < self.began + self.grace_s

    def _known(self) -> Iterator[tuple[NodeId, PoolNode]]:
        yield from self._nodes.items()
        for node, (_, said) in self._away.items():
            yield node, said

    def _seen(self) -> dict[NodeId, tuple[object, ...]]:
        """What places depend on, of each node; its room only where that doesn't suffice."""
        return {
            n: (said.traits, n in self._drained, n in self._away, self._rooms.left(n) < 0)
            for n, said in self._known()
        }

    def _full(self, intent: Intent, now: float) -> set[NodeId]:
        """Nodes that said that they have no room for a model; sooner asked again where nobody else takes their part."""
        lacks = intent.progress is not None and intent.progress.missing_places
        since = now - (LACKING_S if lacks else REFUSED_S)
        return {
            node for (digest, node), (at, kept) in self._refusals.items()
            if digest == intent.wish.digest and kept.refused in _FULL and at > since
        }  # fmt: skip

    def _spots(self, intent: Intent, now: float) -> dict[NodeId, Spot]:
        spots, wish, full = {}, intent.wish, self._full(intent, now)
        for node, said in self._known():
            if node in self._drained or not wish.selector.chooses(said.traits):
                continue
            present = node not in self._away and node not in full
            spots[node] = Spot(said.traits.site, said.traits.rack, self._weights[node], present)
        return spots

    def _give_up_refused(self, intent: Intent, haves: Mapping[NodeId, RunSet], now: float) -> None:
        """Take from nodes that have no room the places of what they don't have."""
        placement = intent.placement
        for node in self._full(intent, now):
            placement.remove_all(node, placement.stripes.had(haves.get(node, 0)), self._rooms)

    def _make_way(self, key: Key, spots: Mapping[NodeId, Spot], copies: int) -> set[NodeId]:
        """Where copies find no room beside those of the model before, these go at once; of which nodes."""
        placement, before = self._intents[key].placement, self._fading.get(key)
        if before is None or all(len(targets) >= copies for targets in placement.targets):
            return set()
        size, gone = placement.stripes.largest, set[NodeId]()
        for node, load in list(before.placement.loads.items()):
            left = self._rooms.left(node)
            if load and node in spots and left < size <= left + load:
                before.placement.remove_all(node, 0, self._rooms)
                before.orders.pop(node, None)
                gone.add(node)
        return gone

    def _note_former(self, intent: Intent, before: list[Targets]) -> None:
        for stripe, (old, new) in enumerate(zip(before, intent.placement.targets, strict=True)):
            if old is new or old == new:
                continue
            there = intent.former.get(stripe, ())
            former = [n for n in dict.fromkeys(there + old) if n not in new]
            intent.former.pop(stripe, None)
            if former:
                intent.former[stripe] = tuple(former)

    def _fade(
        self, key: Key, haves: Mapping[NodeId, RunSet], now: float, *, is_true: bool
    ) -> set[NodeId]:
        """End the orders before an intent's when it is true; returns the nodes whose orders changed."""
        before_it, wish = self._fading.get(key), self._intents[key].wish
        if before_it is None:
            return set()
        waits = self._waits(wish, now)
        if waits and not is_true and not before_it.placement.loads:
            had = before_it.placement.stripes.had_by(haves)
            self._retain(before_it, had, 1, every=True)
            return before_it.give_orders()
        # Of a wish for all nodes those that come next may have parts.
        if (waits and not wish.copies) or not is_true:
            return set()
        self._fading.pop(key).placement.leave(self._rooms)
        return set(before_it.orders)

    def _retain(
        self, intent: Intent, had: Mapping[NodeId, RunSet], copies: int, *, every: bool
    ) -> None:
        """Where copies lack, let nodes keep what they have and may not keep any more, such as one that is drained.

        As many nodes as copies lack, or `every` one: the tracker before us had them keep it, and only it knew. `had`
        are the stripes of each node.
        """
        placement, lack = intent.placement, dict[int, int]()
        had = {node: some for node, some in had.items() if node in self._nodes}
        for stripe, targets in enumerate(placement.targets):
            there = sum(had.get(node, 0) >> stripe & 1 for node in targets)
            if there < copies:
                lack[stripe] = copies - there
        short = bitset.of(lack)
        for node, some in sorted(had.items()):
            for stripe in bitset.members(some & short):
                former = intent.former.get(stripe, ())
                if node in former + placement.targets[stripe]:
                    continue
                if every or sum(had.get(n, 0) >> stripe & 1 for n in former) < lack[stripe]:
                    intent.former[stripe] = (*former, node)

    def _end_former(
        self, intent: Intent, had: Mapping[NodeId, RunSet], copies: int, void: Collection[NodeId]
    ) -> None:
        unclear = {*self._away, *void}
        for stripe, former in list(intent.former.items()):
            targets = intent.placement.targets[stripe]
            done = sum(had.get(n, 0) >> stripe & 1 for n in targets) >= copies
            left = [n for n in former if n in unclear or had.get(n, 0) >> stripe & 1]
            if left and not done:
                intent.former[stripe] = tuple(left)
            else:
                del intent.former[stripe]

    def _measure(self, intent: Intent, had: list[RunSet], copies: int, *, waits: bool) -> Progress:
        stripes, targets = intent.placement.stripes, intent.placement.targets
        fewest, missing = copies_of(had, stripes, copies)
        return Progress(
            fewest, copies, missing,
            missing_places=sum(copies - len(each) for each in targets if len(each) < copies),
            nodes=len(intent.orders),
            refusals={n: kept for (d, n), (_, kept) in self._refusals.items() if d == intent.wish.digest},
            waits=waits,
        )  # fmt: skip


def _cut_anew(before: Wish, wish: Wish) -> bool:
    return (before.digest, before.whole) != (wish.digest, wish.whole)

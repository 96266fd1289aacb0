"""One swarm's members at the tracker: what each has, the versioned list, neighbours for newcomers."""

import random
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from math import inf

from p2pcache.core import bitset
from p2pcache.core.membership import settings
from p2pcache.core.membership.member_record import MemberRecord, Place
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.protocol.messages import Member, Swarm
from p2pcache.core.racks import bridge_slots
from p2pcache.ids import NodeId, RunIndex, RunSet


class Roster:
    """The members of one swarm, and indexes over their records.

    Invariants: `_usual` holds all members that aren't banned, `complete` those of them that have every run, `_parts`
    those that have some and don't fetch the whole, `_racks` each in its rack. Newcomers are among the news.
    """

    def __init__(self, digest: str, run_count: int, seed: int) -> None:
        """A swarm without members; `seed` is of the dice that draw neighbours."""
        self.digest = digest
        self.run_count = run_count
        self.members: dict[NodeId, MemberRecord] = {}  # in the order in which they came
        self.complete = SampledSet()
        self.version = 0
        self._full_set = bitset.full(run_count)
        self._rng = random.Random(seed)
        self._usual = SampledSet()
        self._parts = SampledSet()
        self._racks: dict[Place, SampledSet] = {}
        self._seated: dict[Place, tuple[NodeId, ...]] = {}  # as of the last list
        self._news: dict[NodeId, Member | None] = {}  # since the last flush; None: it left
        # Members that get the rest of their neighbours with the next flush, and all whom they know: that were named to
        # them, or that they were named to.
        self._newcomers: dict[NodeId, set[NodeId]] = {}
        self._list: Swarm | None = None  # the full list of `version`, until the next change
        self._flushed_at = -inf

    # -- members -----------------------------------------------------------------------

    def enter(self, member: Member) -> MemberRecord:
        """A node takes part, or has moved to another address; returns its record."""
        record = self.members.get(member.node)
        if record is None:
            record = self.members[member.node] = MemberRecord(member)
        elif record.member == member:
            return record
        else:
            self._index(record, here=False)
            record.move(member)
        self._news[member.node] = member
        self._index(record, here=not record.banned)
        return record

    def remove(self, node: NodeId) -> None:
        """A node takes part no longer: its record is dropped."""
        self._index(self.members.pop(node), here=False)
        self._newcomers.pop(node, None)
        self._news[node] = None

    def ban(self, record: MemberRecord) -> None:
        """A member sends wrong bytes: nobody is sent to it, and what it has doesn't count."""
        self._index(record, here=False)
        record.verdict_until = inf

    # -- what they have ------------------------------------------------------------------------------

    def set_have(self, record: MemberRecord, have: RunSet) -> RunSet:
        """A member said what it has; returns the runs that count and that it didn't have before."""
        fresh = have & ~record.have
        record.have = have
        if record.node not in self._usual:  # it is banned
            return 0
        self._index(record)
        return fresh

    @property
    def pulling(self) -> set[NodeId]:
        """Members that fetch the whole model. O(members)."""
        return {node for node, record in self.members.items() if record.pulls_all}

    def had_by(self, some: Callable[[MemberRecord], bool]) -> RunSet:
        """Runs that at least one of the members has for which this is true. O(members)."""
        if any(some(self.members[node]) for node in self.complete):
            return self._full_set
        return bitset.union(one.have for one in self.members.values() if some(one))

    def holders(self, run: RunIndex, *, without: NodeId, limit: int) -> list[NodeId]:
        """Members that have a run and of which nobody is believed to complain, complete ones first."""
        drawn = self.complete.draw(self._rng, limit + 1)
        holders = chain(drawn, (node for node in self._usual if node not in self.complete))
        found = (n for n in holders if n != without and self.members[n].delivers >> run & 1)
        return list(islice(found, limit))

    def needy(self) -> Iterable[NodeId]:
        """Members that lack runs: changes of the list concern them."""
        return (node for node in self.members if node not in self.complete)

    # -- racks -------------------------------------------------------------------------------------

    @property
    def places(self) -> AbstractSet[Place]:
        """The racks that have members which aren't banned."""
        return self._racks.keys()

    def seated(self, place: Place) -> tuple[NodeId, ...]:
        """Which nodes bring which runs into a rack that has members (`core.racks.bridge_slots`).

        Some may have left since the last list.
        """
        if place not in self._seated:
            self._seated[place] = bridge_slots.holders(tuple(sorted(self._racks.get(place, ()))))
        return self._seated[place]

    # -- the list ----------------------------------------------------------------------------------

    def full_list(self) -> Swarm:
        """The whole list as of `version`; one object for all that enter before the next flush."""
        if self._list is None:
            told = tuple(r.member for n, r in self.members.items() if n not in self._news)
            self._list = Swarm(self.digest, self.version, full=True, joined=told)
        return self._list

    def hand_out(self, node: NodeId, count: int, seeks: RunSet = 0) -> Swarm | None:
        """So many neighbours for a node that entered, with their addresses; None if it is alone.

        More are named until they have all that it `seeks` of what lies in parts. A newcomer to a large swarm gets half
        of them now, and `hand_out_rest` the others: those that come at one time are named to each other alike.
        """
        record, now = self.members[node], count
        if node in self._news and len(self._usual) > count + 1:
            now -= count // 2
            self._newcomers[node] = {node}
        chosen = self._neighbours(record, now, {node})
        if seeks and self._parts:
            chosen += self._holders_of_parts(record, chosen, seeks & self._full_set)
        return self._name(record, chosen)

    def hand_out_rest(self, count: int) -> Iterable[tuple[NodeId, Swarm]]:
        """The other half of `count` neighbours for each that came since the last flush."""
        for node, known in self._newcomers.items():
            record = self.members[node]
            if rest := self._name(record, self._neighbours(record, count // 2, known)):
                yield node, rest
        self._newcomers.clear()

    def introduction(self, others: Iterable[NodeId]) -> Swarm:
        """A delta that changes nothing but names members to dial."""
        chosen = tuple(others)
        known = tuple(self.members[n].member for n in chosen)
        return Swarm(self.digest, self.version, full=False, joined=known, neighbours=chosen)

    def flush_at(self) -> float:
        """When the next delta may go out; inf when nothing changed."""
        if not self._news:
            return inf
        return self._flushed_at + max(
            settings.FLUSH_S, settings.FLUSH_S_PER_MEMBER * len(self.members)
        )

    def flush_list(self, now: float) -> Swarm | None:
        """The delta since the last flush, one object for all; None if nothing is due."""
        if now < self.flush_at():
            return None
        self._flushed_at = now
        self.version += 1
        self._list = None
        self._seated.clear()
        joined = tuple(member for member in self._news.values() if member is not None)
        left = tuple(sorted(node for node, member in self._news.items() if member is None))
        self._news.clear()
        return Swarm(self.digest, self.version, full=False, joined=joined, left=left)

    def check(self) -> None:
        """Assert the invariants."""
        for node, record in self.members.items():
            assert record.node == node
            assert not (record.banned and record.counts)
        usual = {node for node, record in self.members.items() if not record.banned}
        assert set(self._usual) == usual
        full = {node for node in usual if self.members[node].have == self._full_set}
        assert set(self.complete) == full
        parts = {node for node in usual - full if self.members[node].have}
        assert set(self._parts) == {node for node in parts if not self.members[node].pulls_all}
        places = {node: self.members[node].place for node in usual}
        assert {n: place for place, bag in self._racks.items() for n in bag} == places
        news = {node: member for node, member in self._news.items() if member is not None}
        assert news == {node: self.members[node].member for node in news}
        assert self._newcomers.keys() <= news.keys()
        for bag in (self._usual, self.complete, self._parts, *self._racks.values()):
            bag.check()

    # -- inside ------------------------------------------------------------------------------------

    def _name(self, record: MemberRecord, others: Iterable[NodeId]) -> Swarm | None:
        """Name members to one that dials them, but none whose claims are void; None if nobody is left."""
        chosen = [other for other in others if not self.members[other].void]
        for other in chosen:
            self.members[other].degree += 1
            if other in self._newcomers:
                self._newcomers[other].add(record.node)
        record.degree += len(chosen)
        if record.node in self._newcomers:
            self._newcomers[record.node].update(chosen)
        return self.introduction(chosen) if chosen else None

    def _neighbours(
        self, record: MemberRecord, count: int, known: Collection[NodeId]
    ) -> list[NodeId]:
        """Members to dial, in order of preference: of the same rack, complete ones, far ones. Nobody is `known`.

        Each node gets at least one that was there before it, so the graph of all that ever entered is connected.
        """
        everyone, rack = self._usual, self._racks.get(record.place, SampledSet())
        chosen = dict.fromkeys(known)
        if len(everyone) <= count + len(known):
            near = rack.draw(self._rng, len(rack))
            chosen |= dict.fromkeys(near + everyone.draw(self._rng, len(everyone)))
        else:
            complete, whole = self.complete, count // settings.COMPLETE_SHARE
            for group, share in (
                (rack, count // settings.RACK_SHARE),
                (complete, whole),
                (everyone, count),
            ):
                missing = count + len(known) - len(chosen)
                chosen |= dict.fromkeys(self._draw(group, min(share, missing), chosen))
        return list(chosen)[len(known) :]

    def _draw(self, group: SampledSet, count: int, without: Collection[NodeId]) -> list[NodeId]:
        """About so many members. Of two that are drawn the less connected one is taken (Mitzenmacher 1996).

        Or the first to enter would be everybody's neighbours.
        """
        drawn = group.draw(self._rng, 2 * count + len(without))
        drawn = [n for n in drawn if n not in without][: 2 * count]
        pairs = [(drawn[i], drawn[-1 - i]) for i in range(len(drawn) // 2)]
        chosen = [min(pair, key=lambda n: self.members[n].degree) for pair in pairs]
        if len(chosen) < count:  # there are too few pairs: take their other halves as well
            chosen += [n for n in drawn if n not in chosen][: count - len(chosen)]
        return chosen

    def _holders_of_parts(
        self, record: MemberRecord, chosen: Iterable[NodeId], seeks: RunSet
    ) -> list[NodeId]:
        """Further members, so that a node reaches all runs that lie with members that keep a part: near ones first.

        Such members come and go rarely and get nothing new, so a node that doesn't know them waits in vain.
        """
        left = seeks & ~record.have
        found: list[NodeId] = []
        for node in chosen:
            left &= ~self.members[node].delivers
        holders = [self.members[node] for node in self._parts.draw(self._rng, len(self._parts))]
        site = record.member.site
        holders.sort(key=lambda one: (one.place != record.place, one.member.site != site))
        for holder in holders:
            if not left or len(found) >= settings.MOST_HOLDERS:
                break
            if holder is not record and holder.delivers & left:
                left &= ~holder.delivers
                found.append(holder.node)
        return found

    def _index(self, record: MemberRecord, *, here: bool = True) -> None:
        """A member is found where it is, and by what it has; or nowhere, as it isn't `here` any more, or is banned."""
        node, place, whole = record.node, record.place, record.have == self._full_set
        part = bool(record.have) and not whole and not record.pulls_all
        rack = self._racks.setdefault(place, SampledSet())
        for group, belongs in (
            (self._usual, True), (rack, True), (self.complete, whole), (self._parts, part)
        ):  # fmt: skip
            change = group.add if here and belongs else group.discard
            change(node)
        if not rack:
            del self._racks[place]
            self._seated.pop(place, None)

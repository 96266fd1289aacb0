"""One swarm's members at the tracker: what each has, the versioned list, neighbours for newcomers."""

import random
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import or_

from p2pcache.core import bitset
from p2pcache.core.membership import neighbour_handout
from p2pcache.core.membership.member_record import MemberRecord, Place, Standing
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.membership.settings import FLUSH_S, FLUSH_S_PER_MEMBER
from p2pcache.core.protocol.messages import Member, Swarm
from p2pcache.core.racks import bridge_slots
from p2pcache.ids import NodeId, RunIndex, RunSet


class Roster:
    """The members of one swarm, and indexes over their records.

    Invariants: `complete`, `_ordinary` and `_racks` hold members of ordinary standing only: `_ordinary` all of them,
    `complete` those that have every run, `_parts` those that have some and don't fetch the whole, `_racks` each in its
    rack; `silent` and `banned` hold exactly the members of these standings; `_joined` and `_left` are disjoint.
    """

    def __init__(self, digest: str, run_count: int, seed: int) -> None:
        """A swarm without members.

        Args:
            digest: of the manifest.
            run_count: runs of the model.
            seed: of the dice that draw neighbours.
        """
        self.digest = digest
        self.run_count = run_count
        self.members: dict[NodeId, MemberRecord] = {}  # in the order in which they came
        self.complete = SampledSet()
        self.silent: dict[NodeId, MemberRecord] = {}  # in the order in which it was noticed
        self.banned: set[NodeId] = set()
        self.version = 0
        self.rack_changes = 0  # how often a rack got its first member or lost its last
        self._full_set = bitset.full(run_count)
        self._rng = random.Random(seed)
        self._ordinary = SampledSet()
        self._parts = SampledSet()
        self._racks: dict[Place, SampledSet] = {}
        self._seated: dict[Place, tuple[NodeId, ...]] = {}  # as of the last list
        self._joined: dict[NodeId, Member] = {}  # since the last flush
        self._left: set[NodeId] = set()
        self._list: Swarm | None = None  # the full list of `version`, until the next change
        self._flushed_at = float("-inf")

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, node: NodeId) -> bool:
        return node in self.members

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.members)

    # -- members -----------------------------------------------------------------------

    def enter(self, member: Member) -> MemberRecord:
        """A node takes part, or has moved to another address; returns its record."""
        node = member.node
        record = self.members.get(node)
        if record is None:
            record = self.members[node] = MemberRecord(member)
            self._list_joined(member)
            self._index(record)
        elif record.member != member:
            self._list_joined(member)
            ordinary = record.standing is Standing.ORDINARY
            if ordinary:
                self._unindex(record)
            record.move(member)
            if ordinary:
                self._index(record)
        return record

    def remove(self, node: NodeId) -> None:
        """A node takes part no longer: its record is dropped."""
        record = self.members.pop(node, None)
        if record is None:
            return
        self._unindex(record)
        self.silent.pop(node, None)
        self.banned.discard(node)
        if self._joined.pop(node, None) is None:
            self._left.add(node)

    def ban(self, record: MemberRecord) -> None:
        """A member sends wrong bytes: nobody is sent to it, and what it has doesn't count."""
        self._unindex(record)
        self.silent.pop(record.node, None)
        record.change_standing(Standing.BANNED)
        self.banned.add(record.node)
        record.discounted, record.have = record.have, 0

    def readmit(self, member: Member) -> None:
        """A banned node announced itself: it proved its bytes again, or is another process."""
        node = member.node
        self.banned.remove(node)
        record = self.members[node] = self.members.pop(node)  # it comes last, like a new member
        record.change_standing(Standing.ORDINARY)
        record.move(member)
        record.have = record.discounted = 0
        record.degree, record.pulls_all = 0, False
        self._joined.pop(node, None)
        self._list_joined(member)
        self._index(record)

    def discount(self, record: MemberRecord) -> None:
        """A member doesn't deliver: nobody is sent to it, and only what it gets later counts."""
        self._unindex(record)
        record.change_standing(Standing.DELIVERS_NOTHING)
        record.discounted = record.have
        self.silent[record.node] = record

    def discount_run(self, run: RunIndex) -> None:
        """Members wait in vain for a run that a silent member got since it was discounted: discount that, too."""
        for record in self.silent.values():
            record.discounted |= record.have & 1 << run

    def count_again(self, record: MemberRecord) -> RunSet:
        """A silent member delivers, or is tried again; returns the runs that count from now on."""
        del self.silent[record.node]
        record.change_standing(Standing.ORDINARY)
        runs, record.discounted = record.discounted, 0
        self._index(record)
        return runs

    # -- what they have ------------------------------------------------------------------------------

    def set_have(self, node: NodeId, have: RunSet) -> RunSet:
        """A member said what it has; returns the runs that count and that it didn't have before."""
        record = self.members[node]
        if record.standing is Standing.BANNED:
            record.discounted = have
            return 0
        fresh = have & ~record.have
        record.have = have
        if record.standing is Standing.DELIVERS_NOTHING:
            record.discounted &= have
        else:
            self._index_have(record)
        return fresh

    def _index_have(self, record: MemberRecord) -> None:
        whole = record.have == self._full_set
        part = bool(record.have) and not whole and not record.pulls_all
        for group, belongs in ((self.complete, whole), (self._parts, part)):
            if belongs:
                group.add(record.node)
            else:
                group.discard(record.node)

    def set_pulls_all(self, node: NodeId, *, pulls_all: bool) -> None:
        """A member said whether it fetches the whole model."""
        record = self.members.get(node)
        if record is not None:
            record.pulls_all = pulls_all
            if record.standing is Standing.ORDINARY:
                self._index_have(record)

    @property
    def pulling(self) -> set[NodeId]:
        """Members that fetch the whole model. O(members)."""
        return {node for node, record in self.members.items() if record.pulls_all}

    def covered(self) -> RunSet:
        """Runs that at least one member has and delivers, as last told. O(members)."""
        return self._covered(frozenset())

    def only(self, nodes: AbstractSet[NodeId]) -> RunSet:
        """Runs that no other members deliver than these. O(members)."""
        return self._full_set & ~self._covered(nodes)

    def _covered(self, without: AbstractSet[NodeId]) -> RunSet:
        if len(self.complete) > sum(node in self.complete for node in without):
            return self._full_set
        runs = 0
        for node, record in self.members.items():
            if node not in without:
                runs |= record.have & ~record.discounted
        return runs

    def holders(self, run: RunIndex, *, without: NodeId, limit: int) -> list[NodeId]:
        """Members of ordinary standing that have a run, complete ones first.

        Args:
            run: which.
            without: a node that isn't named.
            limit: how many are named at most.
        """
        found = [n for n in self.complete.draw(self._rng, limit + 1) if n != without]
        for node in self._ordinary:
            if len(found) >= limit:
                break
            has = self.members[node].have >> run & 1
            if has and node != without and node not in self.complete:
                found.append(node)
        return found[:limit]

    def alone(self, nodes: AbstractSet[NodeId]) -> RunSet:
        """Runs that just one member has, and it is among these. O(members)."""
        theirs = [self.members[node].have for node in nodes if node in self.members]
        if len(self.complete) > 1 or not theirs:
            return 0
        once = twice = 0
        for record in self.members.values():
            twice |= once & record.have
            once |= record.have
        return reduce(or_, theirs) & ~twice

    def needy(self) -> Iterable[NodeId]:
        """Members that lack runs: changes of the list concern them."""
        return (node for node in self.members if node not in self.complete)

    # -- racks -------------------------------------------------------------------------------------

    @property
    def places(self) -> AbstractSet[Place]:
        """The racks that have members of ordinary standing."""
        return self._racks.keys()

    def place(self, node: NodeId) -> Place:
        """A member's site and rack; two empty texts for a node that has left."""
        record = self.members.get(node)
        return record.place if record is not None else ("", "")

    def seated(self, place: Place) -> tuple[NodeId, ...]:
        """Which nodes bring which runs into a rack that has members (`core.racks.bridge_slots`).

        Some may have left since the last list.
        """
        if place not in self._seated:
            self._seated[place] = bridge_slots.holders(tuple(sorted(self._racks[place])))
        return self._seated[place]

    # -- the list ----------------------------------------------------------------------------------

    def full_list(self) -> Swarm:
        """The whole list as of `version`; one object for all that enter before the next flush."""
        if self._list is None:
            told = tuple(r.member for n, r in self.members.items() if n not in self._joined)
            self._list = Swarm(self.digest, self.version, full=True, joined=told)
        return self._list

    def hand_out(self, node: NodeId, count: int, seeks: RunSet = 0) -> Swarm | None:
        """Neighbours for a node that entered, with their addresses; None if it is alone.

        Args:
            node: in question.
            count: how many neighbours.
            seeks: runs that it will look for; more neighbours are named until these have all that lies in parts.
        """
        record = self.members[node]
        chosen = neighbour_handout.neighbours(
            node, everyone=self._ordinary, complete=self.complete, members=self.members,
            rack=self._racks.get(record.place, SampledSet()), count=count, rng=self._rng,
        )  # fmt: skip
        if seeks and self._parts:
            chosen += neighbour_handout.holders_of_parts(
                record, seeks & self._full_set, chosen, self._parts.draw(self._rng, len(self._parts)), self.members
            )  # fmt: skip
        for other in chosen:
            self.members[other].degree += 1
        record.degree += len(chosen)
        return self.introduction(chosen) if chosen else None

    def introduction(self, others: Iterable[NodeId]) -> Swarm:
        """A delta that changes nothing but names members to dial."""
        chosen = tuple(others)
        known = tuple(self.members[n].member for n in chosen)
        return Swarm(self.digest, self.version, full=False, joined=known, neighbours=chosen)

    def flush_at(self) -> float | None:
        """When the next delta may go out; None when nothing changed."""
        if not self._joined and not self._left:
            return None
        return self._flushed_at + max(FLUSH_S, FLUSH_S_PER_MEMBER * len(self.members))

    def flush_list(self, now: float) -> Swarm | None:
        """The delta since the last flush, one object for all; None if nothing is due."""
        due = self.flush_at()
        if due is None or now < due:
            return None
        self._flushed_at = now
        self.version += 1
        self._list = None
        self._seated.clear()
        joined, left = tuple(self._joined.values()), tuple(sorted(self._left))
        self._joined.clear()
        self._left.clear()
        return Swarm(self.digest, self.version, full=False, joined=joined, left=left)

    def check(self) -> None:
        """Assert the invariants."""
        by_standing: dict[Standing, set[NodeId]] = {standing: set() for standing in Standing}
        for node, record in self.members.items():
            record.check()
            assert record.node == node
            by_standing[record.standing].add(node)
        ordinary = by_standing[Standing.ORDINARY]
        assert set(self._ordinary) == ordinary
        assert self.silent.keys() == by_standing[Standing.DELIVERS_NOTHING]
        assert self.banned == by_standing[Standing.BANNED]
        full = {node for node in ordinary if self.members[node].have == self._full_set}
        assert set(self.complete) == full
        parts = {node for node in ordinary - full if self.members[node].have}
        assert set(self._parts) == {node for node in parts if not self.members[node].pulls_all}
        places = {node: self.members[node].place for node in ordinary}
        assert {n: place for place, bag in self._racks.items() for n in bag} == places
        assert not self._joined.keys() & self._left
        assert self._joined.keys() <= self.members.keys()
        for bag in (self._ordinary, self.complete, self._parts, *self._racks.values()):
            bag.check()

    def _list_joined(self, member: Member) -> None:
        self._joined[member.node] = member
        self._left.discard(member.node)

    def _index(self, record: MemberRecord) -> None:
        node, place = record.node, record.place
        self._ordinary.add(node)
        self._index_have(record)
        if place not in self._racks:
            self._racks[place] = SampledSet()
            self.rack_changes += 1
        self._racks[place].add(node)

    def _unindex(self, record: MemberRecord) -> None:
        node, place = record.node, record.place
        self._ordinary.discard(node)
        self.complete.discard(node)
        self._parts.discard(node)
        rack = self._racks.get(place)
        if rack is not None:
            rack.discard(node)
            if not rack:
                del self._racks[place]
                self.rack_changes += 1
                self._seated.pop(place, None)

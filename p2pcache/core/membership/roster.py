"""One swarm's members at the tracker: who has what, the versioned list, whom to dial. Pure."""

import random
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from p2pcache.core import bitset
from p2pcache.core.membership import neighbour_handout
from p2pcache.core.protocol.messages import Member, Swarm
from p2pcache.core.racks import bridge_slots
from p2pcache.core.sampled_set import SampledSet

FLUSH_S = 0.25  # deltas are batched: at most four a second ...
FLUSH_S_PER_MEMBER = 0.0005  # ... and fewer in large swarms: a delta costs 68 us per receiver

Place = tuple[str, str]
"""A site and one of its racks."""


class Roster:
    """The members of one swarm.

    Invariants: `have`, `_everyone` and `_members` have the same keys; `complete` holds exactly
    those whose have-set is full; `_shunned` is a subset of the members, has empty have-sets and
    is in no bag that neighbours are drawn from; `void` names members whose claims don't count, with those claims,
    and they are in no such bag either; any other member is in exactly its rack's bag; `_joined` and `_left` are
    disjoint.
    """

    def __init__(self, digest: str, run_count: int, seed: int) -> None:
        self.digest = digest
        self.run_count = run_count
        self.have: dict[int, int] = {}  # node -> bits, as last told
        self.complete = SampledSet()
        self.pulling: set[int] = set()  # members that fetch all of it, as last told
        self.version = 0
        self._full_set = bitset.full(run_count)
        self._rng = random.Random(seed)
        self._members: dict[int, Member] = {}
        self._everyone = SampledSet()
        self._racks: dict[Place, SampledSet] = {}
        self.rack_changes = 0  # how often one got its first member or lost its last
        self._seated: dict[Place, tuple[int, ...]] = {}  # as of the list that was told last
        self._degree: dict[int, int] = {}
        self._shunned: dict[int, int] = {}  # -> bits that it says it has: no use to others
        self.void: dict[
            int, int
        ] = {}  # members that don't deliver, and what they had (bits) when that was seen
        self._joined: dict[int, Member] = {}  # since the last flush
        self._left: set[int] = set()
        self._list: Swarm | None = None  # the full list of `version`, until the next change
        self._flushed_at = float("-inf")

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node: int) -> bool:
        return node in self._members

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def enter(self, member: Member) -> None:
        """A node takes part (or takes part again, perhaps from another address)."""
        node = member.node
        known = self._members.get(node)
        if known == member:
            return
        self._members[node] = self._joined[node] = member
        self._left.discard(node)
        if node in self._shunned or node in self.void:
            return
        if known is not None:
            self._take_out(known)
        self.have.setdefault(node, 0)
        self._put_in(member)

    def leave(self, node: int) -> None:
        """A node takes part no longer."""
        member = self._members.pop(node, None)
        if member is None:
            return
        self._take_out(member)
        self._degree.pop(node, None)
        self._shunned.pop(node, None)
        self.void.pop(node, None)
        self.pulling.discard(node)
        del self.have[node]
        if self._joined.pop(node, None) is None:
            self._left.add(node)

    def shun(self, node: int) -> None:
        """It serves wrong bytes: nobody is sent to it, and what it has doesn't count."""
        if node in self._members:
            self._take_out(self._members[node])
            self.void.pop(node, None)
            self._shunned[node] = self.have[node]
            self.have[node] = 0

    def doubt(self, node: int) -> None:
        """It doesn't deliver what it has: nobody is sent to it, and only what it gets later counts."""
        if node in self._members and node not in self._shunned:
            self._take_out(self._members[node])
            self.void[node] = self.have[node]

    def doubt_run(self, run: int) -> None:
        """Who doesn't deliver got this run after that was seen; somebody else waits for it all the same."""
        for node in self.void:
            self.void[node] |= self.have[node] & 1 << run

    def believe(self, node: int) -> int:
        """It delivers, or is to be tried again; returns the bits that count from now on and didn't before."""
        if node not in self.void:
            return 0
        void = self.void.pop(node)
        self._put_in(self._members[node])
        return void

    def update(self, node: int, have: int) -> int:
        """A member said what it has; returns the bits that it didn't have before."""
        if node in self._shunned:
            self._shunned[node] = have
            return 0
        fresh = have & ~self.have[node]
        self.have[node] = have
        if node in self.void:
            self.void[node] &= have
        elif have == self._full_set:
            self.complete.add(node)
        else:
            self.complete.discard(node)
        return fresh

    def pulls(self, node: int, *, pulled: bool) -> None:
        """A member said whether it fetches all of it."""
        if pulled and node in self._members:
            self.pulling.add(node)
        else:
            self.pulling.discard(node)

    def has(self, node: int) -> int:
        """Bits that a member says it has, whether or not it is believed."""
        return self._shunned.get(node, 0) | self.have[node]

    def is_shunned(self, node: int) -> bool:
        """Whether the node was caught sending wrong bytes."""
        return node in self._shunned

    @property
    def shunned(self) -> int:
        """How many nodes were caught sending wrong bytes."""
        return len(self._shunned)

    def covered(self, *, without: int = -1) -> int:
        """Bits that at least one member (but `without`, if given) has and would deliver, as last told. O(members)."""
        return self._covered({without})

    def only(self, nodes: AbstractSet[int]) -> int:
        """Runs (bits) that nobody has but these members, or such as don't deliver; O(members)."""
        return self._full_set & ~self._covered(nodes)

    def _covered(self, without: AbstractSet[int]) -> int:
        if len(self.complete) > sum(node in self.complete for node in without):
            return self._full_set
        bits = 0
        for node, have in self.have.items():
            bits |= have & ~self.void.get(node, 0) if node not in without else 0
        return bits

    def holders(self, run: int, *, without: int, limit: int) -> list[int]:
        """Up to `limit` members that have the run, complete ones first."""
        found = [n for n in self.complete.draw(self._rng, limit + 1) if n != without]
        for node in self._everyone:
            if len(found) >= limit:
                break
            if self.have[node] >> run & 1 and node != without and node not in self.complete:
                found.append(node)
        return found[:limit]

    def alone(self, nodes: AbstractSet[int]) -> int:
        """Runs (bits) that just one member has, and it is among these; O(members)."""
        nodes = nodes & self.have.keys()
        if len(self.complete) > 1:
            return 0
        once = twice = 0
        for have in self.have.values() if nodes else ():
            twice |= once & have
            once |= have
        theirs = 0
        for node in nodes:
            theirs |= self.have[node]
        return theirs & ~twice

    def needy(self) -> Iterable[int]:
        """Members that lack runs: the ones whom changes of the list concern."""
        return (node for node in self._members if node not in self.complete)

    @property
    def places(self) -> AbstractSet[Place]:
        """The racks that have members."""
        return self._racks.keys()

    def place(self, node: int) -> Place:
        """A member's site and rack; nowhere for who has left."""
        member = self._members.get(node)
        return (member.site, member.rack) if member is not None else ("", "")

    def seated(self, place: Place) -> tuple[int, ...]:
        """Who brings which runs into a rack that has members (`core.racks.bridge_slots`); some may have left since."""
        if place not in self._seated:
            self._seated[place] = bridge_slots.holders(tuple(sorted(self._racks[place])))
        return self._seated[place]

    # -- the list ----------------------------------------------------------------------------------

    def full_list(self) -> Swarm:
        """The whole list as of `version`; one object for all who enter before the next flush."""
        if self._list is None:
            told = tuple(m for n, m in self._members.items() if n not in self._joined)
            self._list = Swarm(self.digest, self.version, full=True, joined=told)
        return self._list

    def introduce(self, node: int, count: int) -> Swarm | None:
        """Neighbours for a node that entered, with their records; None if it is alone."""
        member = self._members[node]
        chosen = neighbour_handout.neighbours(
            node, everyone=self._everyone, complete=self.complete, degree=self._degree,
            rack=self._racks.get((member.site, member.rack), SampledSet()), count=count, rng=self._rng,
        )  # fmt: skip
        for other in chosen:
            self._degree[other] = self._degree.get(other, 0) + 1
        self._degree[node] = self._degree.get(node, 0) + len(chosen)
        return self.introduction(chosen) if chosen else None

    def introduction(self, others: Iterable[int]) -> Swarm:
        """A delta that changes nothing but names members to dial."""
        chosen = tuple(others)
        known = tuple(self._members[n] for n in chosen)
        return Swarm(self.digest, self.version, full=False, joined=known, neighbours=chosen)

    def flush_at(self) -> float | None:
        """When the next delta may go out; None when nothing changed."""
        if not self._joined and not self._left:
            return None
        return self._flushed_at + max(FLUSH_S, FLUSH_S_PER_MEMBER * len(self._members))

    def flush(self, now: float) -> Swarm | None:
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
        members = set(self._members)
        assert set(self.have) == members
        assert self.void.keys() <= members - self._shunned.keys()
        out = self._shunned.keys() | self.void.keys()
        assert set(self._everyone) == members - out
        assert self._shunned.keys() <= members
        assert self.pulling <= members
        assert all(self.have[n] == 0 for n in self._shunned)
        assert set(self.complete) == {n for n in members - out if self.have[n] == self._full_set}
        places = {n: (m.site, m.rack) for n, m in self._members.items() if n not in out}
        assert {n: place for place, bag in self._racks.items() for n in bag} == places
        assert not self._joined.keys() & self._left
        assert self._joined.keys() <= members
        for bag in (self._everyone, self.complete, *self._racks.values()):
            bag.check()

    def _put_in(self, member: Member) -> None:
        node, place = member.node, (member.site, member.rack)
        self._everyone.add(node)
        if self.have[node] == self._full_set:
            self.complete.add(node)
        if place not in self._racks:
            self._racks[place] = SampledSet()
            self.rack_changes += 1
        self._racks[place].add(node)

    def _take_out(self, member: Member) -> None:
        node, place = member.node, (member.site, member.rack)
        self._everyone.discard(node)
        self.complete.discard(node)
        bag = self._racks.get(place)
        if bag is not None:
            bag.discard(node)
            if not bag:
                del self._racks[place]
                self.rack_changes += 1
                self._seated.pop(place, None)

"""The nodes that work on leases: their credit, what they read, when they rest, and whether others get at them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from math import inf
from operator import or_

from p2pcache.core import backoff
from p2pcache.core.leases.read_concurrency import ReadConcurrency
from p2pcache.core.leases.settings import (
    FIRST_REST_S,
    LAST_REST_S,
)
from p2pcache.core.leases.slow_readers import SlowReaders
from p2pcache.core.membership.member_record import MemberRecord, Reach
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.origin.settings import FILL_A_LINK, LEAST_PATIENCE_S
from p2pcache.core.settings import LeaseSettings
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet


@dataclass(slots=True)
class Lease:
    """A grant that runs. Times are the tracker's monotonic seconds."""

    node: NodeId
    since: float
    expires: float
    adopted: bool = False  # the read began before it
    others: set[NodeId] = field(default_factory=set)  # bearers that came to have the run meanwhile


class Readers:
    """The members of a swarm that have credit, and indexes over their records.

    A reader stands aside while others may be unable to get what it reads: it gets a lease when no other reader may.

    Invariants: `working` holds exactly the members with credit, `choosy` those of them that want some runs only;
    a reader of k runs with a credit over k is in `with_room[k]`, and nowhere else; `aside` those that
    stand aside, `_resting` those whose last read failed.
    """

    def __init__(
        self, members: dict[NodeId, MemberRecord], settings: LeaseSettings, dice: random.Random
    ) -> None:
        """No member works on leases yet.

        Args:
            members: the swarm's members; the roster keeps them up to date.
            settings: the knobs.
            dice: seeded.
        """
        self.working: dict[NodeId, MemberRecord] = {}
        self.choosy: dict[NodeId, MemberRecord] = {}
        self.with_room = [SampledSet()]
        self.aside: set[NodeId] = set()
        self.slow_readers = SlowReaders(settings.slow_node_ratio)
        self.dice = dice
        self._members = members
        self._settings = settings
        self._concurrency = self._unmeasured()  # of all of them together
        self._resting: dict[NodeId, MemberRecord] = {}

    def __len__(self) -> int:
        return len(self.working)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.working)

    # -- credit ------------------------------------------------------------------------------------

    def set_credit(self, record: MemberRecord, credit: int, wanted: RunSet) -> None:
        """How many leases at once a member works on (at most what the whole swarm may have), and of which runs."""
        self._leave_room(record)
        if credit > 0:
            record.credit = min(credit, self._settings.most_in_flight)
            self.working[record.node] = record
        else:
            record.credit = 0
            self.working.pop(record.node, None)
            if not self.working:
                self._concurrency = self._unmeasured()  # by the next storm storage may have moved
            self._resting.pop(record.node, None)
            self.slow_readers.end_rest(record)
        self._enter_room(record)
        self.review(record)
        record.wanted = wanted if credit > 0 else ALL
        if record.wanted == ALL:
            self.choosy.pop(record.node, None)
        else:
            self.choosy[record.node] = record

    def on_granted(self, record: MemberRecord, run: RunIndex) -> None:
        """A reader got a lease."""
        self._leave_room(record)
        record.runs.add(run)
        self._enter_room(record)

    def on_lease_ended(self, record: MemberRecord, run: RunIndex) -> None:
        """A reader has the lease no longer."""
        self._leave_room(record)
        record.runs.remove(run)
        self._enter_room(record)

    def reset(self, record: MemberRecord) -> None:
        """A member is gone, or banned: what is known of its reads is out of date. Its leases have ended before."""
        self.set_credit(record, 0, ALL)
        self.slow_readers.reset(record)
        record.failures = 0

    # -- how reads end -----------------------------------------------------------------------------

    @property
    def concurrency(self) -> ReadConcurrency:
        """How many leases at once pay. Each of the able readers has one, up to as many as fill a link."""
        least = max(self._settings.in_flight, min(self.able, FILL_A_LINK))
        if least != self._concurrency.least:
            self._concurrency.set_least(least)
        return self._concurrency

    @property
    def at_once(self) -> int:
        """Leases that may be in flight over the swarm: as many as the way to storage holds."""
        return self.concurrency.limit

    def on_read_done(
        self, record: MemberRecord, lease: Lease, now: float, in_flight: int, flow_s: float = 0.0
    ) -> None:
        """A read has ended well.

        Args:
            record: of the reader.
            lease: what it read with.
            now: seconds.
            in_flight: leases at that moment, this one included.
            flow_s: how long its bytes flowed, in seconds; 0: not known.
        """
        self.concurrency.any_ended = True
        if not lease.adopted:  # or nobody knows how long it took
            self.concurrency.on_read_done(now - lease.since, in_flight, flow_s, now)
        record.failures = 0
        self._resting.pop(record.node, None)
        self.slow_readers.on_read_done(record, lease.since, now, in_flight, len(self.working))

    def on_read_failed(self, record: MemberRecord, now: float) -> None:
        """A reader couldn't read from the origin: it rests, longer with each failure in a row."""
        record.failures += 1
        rest_s = backoff.pause_s(FIRST_REST_S, LAST_REST_S, record.failures - 1)
        if record.credit:
            record.rests_until = now + rest_s * self.dice.uniform(0.5, 1.0)
            self._resting[record.node] = record

    def patience_s(self, in_flight: int) -> float:
        """How long a lease may take while a member is stuck without its run; inf before any read has ended.

        Args:
            in_flight: leases now: reads that share the way are slow together, and none of them is taken back for it.
        """
        if not self.slow_readers.measured:
            return inf
        usual_s = self.slow_readers.usual_among_s(in_flight)
        return max(LEAST_PATIENCE_S, self._settings.stuck_factor * usual_s)

    # -- whether others get at them ----------------------------------------------------------------

    def review(self, record: MemberRecord) -> None:
        """A member has other credit, or another reach."""
        change = self.aside.add if self._stands_aside(record) else self.aside.discard
        change(record.node)

    # -- what they could read ----------------------------------------------------------------------

    @property
    def fit(self) -> int:
        """How many readers don't stand aside."""
        return len(self.working) - len(self.aside)

    @property
    def able(self) -> int:
        """How many readers share the leases: all that don't stand aside and are as quick as the others, or else all."""
        # What slow readers don't read falls to the others. Nor does one on probation count, or it would have a share
        # for which all others are full.
        convicted = self.slow_readers.convicted.values()
        unfit = sum(1 for one in convicted if one.credit and one.node not in self.aside)
        return self.fit - unfit or len(self.working) or 1

    def lacks(self, record: MemberRecord, run: RunIndex) -> bool:
        """Whether a reader has use for this run."""
        return bool((record.wanted & ~record.have) >> run & 1)

    def rests(self, record: MemberRecord) -> bool:
        """Whether a reader rests after a failed read."""
        return record.node in self._resting

    def lacking(self) -> RunSet:
        """Runs that any reader has use for. O(readers)."""
        return reduce(or_, (one.wanted & ~one.have for one in self.working.values()), 0)

    # -- time --------------------------------------------------------------------------------------

    def end_rests(self, now: float) -> None:
        """End rests that are over."""
        if self._resting:
            for node in [n for n, one in self._resting.items() if one.rests_until <= now]:
                del self._resting[node]
        if self.slow_readers.resting:
            self.slow_readers.end_rests(now)

    def next_rested(self) -> float | None:
        """When `end_rests` has something to do."""
        ends = [one.rests_until for one in self._resting.values()]
        ends += [one.slow_until for one in self.slow_readers.resting.values()]
        return min(ends, default=None)

    def check(self) -> None:
        """Assert the invariants."""
        records = self._members.values()
        assert self.working.keys() == {one.node for one in records if one.credit}
        assert self.choosy.keys() == {one.node for one in records if one.wanted != ALL}
        assert self._resting.keys() | self.slow_readers.resting.keys() <= self.working.keys()
        self.slow_readers.check(self._members)
        assert self.aside == {node for node, one in self.working.items() if self._stands_aside(one)}
        for count, level in enumerate(self.with_room):
            level.check()
            assert set(level) == {
                one.node for one in self.working.values() if len(one.runs) == count < one.credit
            }

    def _unmeasured(self) -> ReadConcurrency:
        return ReadConcurrency(self._settings.in_flight, self._settings.most_in_flight)

    def _stands_aside(self, record: MemberRecord) -> bool:
        return record.credit > 0 and record.reach in (Reach.SILENT, Reach.UNREACHABLE)

    def _leave_room(self, record: MemberRecord) -> None:
        levels, count = self.with_room, len(record.runs)
        if count < len(levels):
            levels[count].discard(record.node)

    def _enter_room(self, record: MemberRecord) -> None:
        levels, count = self.with_room, len(record.runs)
        if count < record.credit:
            while len(levels) <= count:
                levels.append(SampledSet())
            levels[count].add(record.node)

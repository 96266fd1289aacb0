"""Which node may read which run from the origin: one book for each model.

A run is in exactly one of three states: *free* (no member is known to have it and none reads it), *leased* (one node
reads it), or *done* (a member said that it proved it). Leases are granted in file order, so that loaders get their
bytes early and neighbours always want the same region. Where nodes want parts of a model those without a lease come
first. `reader_choice` says which node gets the next one.
"""

import random
from bisect import bisect_right
from collections import Counter
from itertools import islice
from math import inf

from p2pcache.core import bitset
from p2pcache.core.leases.reader_choice import ReaderChoice
from p2pcache.core.leases.readers import Lease, Readers, lacked_by
from p2pcache.core.leases.settings import SAMPLE
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.roster import Roster
from p2pcache.core.origin.settings import LEAST_PATIENCE_S
from p2pcache.core.settings import LeaseSettings
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet


class LeaseBook:
    """The leases of one model.

    Invariants: `free` and `leased` are disjoint; `leased` is exactly the keys of `leases`, the oldest first; the runs
    in the members' records are exactly their leases.
    """

    def __init__(self, roster: Roster, settings: LeaseSettings, seed: int) -> None:
        """An empty book: every run is free. `seed` is of the dice that break ties."""
        self.run_count = roster.run_count
        self.free, self.leased = bitset.full(self.run_count), 0
        self.leases: dict[RunIndex, Lease] = {}
        self.granted = 0  # leases given out, for metrics
        self.regranted = 0  # runs granted again though a live node has them
        self.ends: Counter[str] = Counter()  # leases that are over, by reason
        self.readers = Readers(roster.members, settings, random.Random(seed))
        self._members = roster.members
        self._settings = settings
        self._choice = ReaderChoice(self.readers, roster)
        self._again: RunSet = 0  # runs that were granted again
        self._had: RunSet = 0  # runs that a member had at some time
        self._urgent: RunSet = 0  # runs that a loader waits for: granted before the others
        self._taken: dict[RunIndex, list[NodeId]] = {}  # from these slow nodes, one after the other
        self._read_at = -inf  # when a lease ended well
        self._paced = False  # whether only the time isn't there yet to grant one more
        self._patience_s = inf  # a read that takes longer is late
        self._late_at = inf  # when one more is

    @property
    def done(self) -> RunSet:
        """Runs that some member said it has, or that one had that may be back soon (`LostRuns`)."""
        return bitset.full(self.run_count) & ~self.free & ~self.leased

    @property
    def idle(self) -> bool:
        """Whether nothing is being read and nothing is left to read that any reader wants."""
        # Each message of a stuck node asks: all readers are looked at only if nothing else decides.
        if self.leases or not self.free:
            return not self.leases
        return not self.free & bitset.union(map(lacked_by, self.readers.working.values()))

    # -- what members say --------------------------------------------------------------------------

    def set_credit(self, node: NodeId, credit: int, wanted: RunSet = ALL) -> None:
        """A member works on up to `credit` leases at once, of these runs; 0: on none any more."""
        self.readers.set_credit(self._members[node], credit, wanted)

    def on_progress(self, node: NodeId) -> None:
        """A member has said what it has: one that has far fewer runs than others is slow to read as well."""
        self.readers.on_progress(self._members[node], self.ends["done"])

    def on_urgent(self, runs: RunSet) -> None:
        """A loader waits for these runs: granted before the others. If it waits for all, file order is kept."""
        self._urgent |= runs

    def on_have(self, node: NodeId, fresh: RunSet, now: float, flow_s: float = 0.0) -> None:
        """A member has runs that it didn't have before.

        `flow_s` is how many seconds the bytes of one of them flowed, if it read that; 0: not known.
        """
        for run in self._leases_of(node, fresh):
            in_flight = self._under_way(now)
            self._read_at = now
            lease = self._end(run, "done")
            self.readers.on_read_done(self._members[node], lease, now, in_flight, flow_s)
            self._patience_s = self._settings.stuck_factor * self.readers.times.usual_s()
        self.set_held(fresh)

    def renew(self, node: NodeId, reading: RunSet, now: float) -> None:
        """A heartbeat says which runs the node is reading: its leases live on.

        A read without a lease (the tracker restarted, or the lease had just expired) becomes one.
        """
        for run in self._leases_of(node, reading):
            self.leases[run].expires = now + self._settings.ttl_s
        for run in bitset.members(reading & self.free & ~self._members[node].have):
            self._begin(run, self._members[node], now, adopted=True)

    def keep_only(self, node: NodeId, reading: RunSet) -> bool:
        """A fresh announcement: leases that it doesn't list never arrived, or ended unheard; whether there were any."""
        return self._end_all(node, ~reading, "unheard")

    def on_failed(self, node: NodeId, runs: RunSet, now: float) -> list[RunIndex]:
        """A node couldn't read its leases: others may, and it rests a while; returns those that it had."""
        mine = self._leases_of(node, runs)
        for run in mine:
            self._give_up(run, "failed")
        if mine:
            self.readers.on_read_failed(self._members[node], now)
        return mine

    def on_returned(self, node: NodeId, runs: RunSet) -> bool:
        """A node doesn't need its leases: another one seems to have the runs, or its pull has ended.

        Returns whether any was its own.
        """
        return self._end_all(node, runs, "returned")

    def on_banned_have(self, node: NodeId, runs: RunSet) -> None:
        """A banned member has runs for itself: it needs no leases of them, but others do."""
        for run in self._leases_of(node, runs):
            self._give_up(run, "kept")
        self._again |= runs & self.free

    def drop_reader(self, node: NodeId) -> None:
        """A member is gone, or banned."""
        self._end_all(node, ALL, "gone")
        self.readers.reset(self._members[node])

    # -- what the tracker decides ------------------------------------------------------------------

    def set_held(self, runs: RunSet) -> None:
        """Others get these runs from a member: nobody else is to begin with them."""
        self.free &= ~runs
        self._had |= runs
        for run in bitset.members(runs & self.leased):
            self.leases[run].held = True

    def set_free(self, runs: RunSet) -> None:
        """No member has these runs: they may be granted again."""
        self.free |= runs & ~self.leased

    def regrant(self, runs: RunSet) -> None:
        """Grant done runs again though live nodes have them."""
        self.regranted += runs.bit_count()
        self._again |= runs
        self.set_free(runs)

    def take_over(self, run: RunIndex, member: MemberRecord, now: float) -> NodeId | None:
        """Take a lease from a node that is far too slow, for a member that is stuck without the run.

        The lease goes on while other reads end that bring the member something and no loader waits for the run: a
        second read takes time from all others, and the slow one may end. Returns the slow node (send it a revocation),
        or None if the lease goes on.
        """
        lease = self.leases.get(run)
        if lease is None or lease.node == member.node:
            return None
        # Reads that share the way are slow together, and none of them is taken back for it.
        crowd_s = self.readers.concurrency.crowd_s(self._under_way(now))
        ended_s, usual_s = now - self._read_at, self.readers.times.usual_s(crowd_s)
        others_end = ended_s < usual_s and bool(member.wanted & self.free)
        if others_end and not self._urgent >> run & 1:
            return None
        patience_s = max(LEAST_PATIENCE_S, self._settings.stuck_factor * usual_s)
        # Storage is silent if several nodes read and no read ends: a second read would bring nothing either.
        silent = ended_s >= patience_s / 2 and any(
            one.node != lease.node for one in self.leases.values()
        )
        # The patience doubles with each loser: storage that became slower would see every read cut off for ever.
        losers = self._taken.get(run, [])
        if now < lease.since + patience_s * 2.0 ** (len(losers) + silent):
            return None
        if not self._choice.goes_to_another(run, self._members[lease.node]):
            return None  # it would only begin again
        self._taken[run] = [*losers, lease.node]
        self._give_up(run, "too slow")
        self.readers.on_lease_taken(self._members[lease.node], now - lease.since, now)
        return lease.node

    def expire(self, now: float) -> bool:
        """End leases that weren't renewed, and rests that are over; returns whether any lease ended."""
        self.readers.end_rests(now)  # rests end even while nothing may be granted
        over = [run for run, lease in self.leases.items() if lease.expires <= now]
        for run in over:
            self._end(run, "expired")
        return bool(over)

    def grant(self, now: float) -> dict[NodeId, list[RunIndex]]:
        """Give out what may be given out now: runs by node, each group in file order.

        Urgent runs come first, then, where readers want parts of a model, those of readers without a lease; at the end
        those that were read before.
        """
        self.readers.end_rests(now)
        given: dict[NodeId, list[RunIndex]] = {}
        self._paced, self._late_at = False, inf
        if not self.free or not self.readers.working:
            return given
        skipped, candidates = 0, self.free
        while candidates and skipped < SAMPLE and self._may_grant(now):
            # A node that had a run and is gone may be starting again, and is back before all others are read.
            fresh = candidates & ~(self._had & ~self._again)
            first = candidates & self._urgent or candidates & self._choice.first_reads(fresh)
            run = bitset.first(first or fresh or candidates)
            candidates &= ~(1 << run)
            again = bool(self._again >> run & 1)
            losers = self._taken.get(run, ())
            record = self._choice.choose(run, again=again, losers=losers)
            if record is not None:
                self._begin(run, record, now)
                self.readers.concurrency.on_begun(self._under_way(now), now)
                self.granted += 1
                given.setdefault(record.node, []).append(run)
            elif self.readers.choosy or again:  # readers with room may want others only, or have it
                candidates &= self._choice.acceptable(every=again)
                skipped += 1
            else:
                break
        late, self._late_at = self._late(now)
        room = len(self.leases) - late < self.readers.concurrency.limit
        self._paced = room and not self._may_grant(now)
        return given

    def next_wakeup(self, *, grants: bool = True) -> float | None:
        """When a lease expires, or, if there are `grants`, one more may begin or a resting reader be tried again."""
        ends = [lease.expires for lease in self.leases.values()]
        if grants and self.free:
            ends += [self.readers.concurrency.next_at] * self._paced + [self._late_at]
            ends += [one.rests_until for one in self.readers.resting.values()]
        return min(ends, default=None)

    def check(self) -> None:
        """Assert the invariants."""
        assert not self.free & self.leased
        assert not (self.free | self.leased) >> self.run_count
        assert bitset.of(self.leases) == self.leased
        by_node: dict[NodeId, set[RunIndex]] = {}
        for run, lease in self.leases.items():
            by_node.setdefault(lease.node, set()).add(run)
            assert not self._members[lease.node].have >> run & 1, run
        assert by_node == {node: one.runs for node, one in self._members.items() if one.runs}
        self.readers.check()

    # -- inside ------------------------------------------------------------------------------------

    def _late(self, now: float) -> tuple[int, float]:
        """How many reads take far longer than those that ended of late, and when one more will; inf: no more count.

        Storage may have fallen silent, so no more count than readers may be slow at once.
        """
        most = int(self.readers.times.rule.max_share * len(self.readers.working))
        ends = [
            one.since + self._patience_s for one in islice(self.leases.values(), most)
        ]  # sorted
        late = bisect_right(ends, now)
        return late, ends[late] if late < len(ends) else inf

    def _under_way(self, now: float) -> int:
        """Reads that share the way to storage. A late one leaves it to others: its own node is slow (docs/lab/0109)."""
        return len(self.leases) - self._late(now)[0]

    def _may_grant(self, now: float) -> bool:
        return self.readers.concurrency.may_begin(self._under_way(now), now)

    def _leases_of(self, node: NodeId, runs: RunSet) -> list[RunIndex]:
        return sorted(run for run in self._members[node].runs if runs >> run & 1)

    def _begin(
        self, run: RunIndex, record: MemberRecord, now: float, *, adopted: bool = False
    ) -> None:
        expires = now + self._settings.ttl_s
        self.leases[run] = Lease(record.node, record.place, now, expires, adopted)
        self.leased |= 1 << run
        self.free &= ~(1 << run)
        record.runs.add(run)
        self.readers.review(record)
        self._choice.racks.on_begun(record.place)

    def _end(self, run: RunIndex, why: str) -> Lease:
        lease = self.leases.pop(run)
        self.leased &= ~(1 << run)
        record = self._members[lease.node]
        record.runs.remove(run)
        self.readers.review(record)
        self._choice.racks.on_ended(lease.place)
        self.ends[why] += 1
        return lease

    def _end_all(self, node: NodeId, runs: RunSet, why: str) -> bool:
        """End the leases of a node: their runs count as done until it is known which members have them."""
        mine = self._leases_of(node, runs)
        for run in mine:
            self._end(run, why)
        return bool(mine)

    def _give_up(self, run: RunIndex, why: str) -> None:
        """Another node should read a run, unless a member has it that came to have it during the lease."""
        lease = self._end(run, why)
        held = (one.have >> run & 1 and one.counts for one in self._members.values())
        if not lease.held or not any(held):
            self.set_free(1 << run)

"""The nodes that work on leases: their credit, what they read, when they rest, and whether others get at them."""

import random
from dataclasses import dataclass

from p2pcache.core import backoff
from p2pcache.core.leases.read_concurrency import ReadConcurrency
from p2pcache.core.leases.settings import FIRST_REST_S, LAST_REST_S
from p2pcache.core.leases.slow_readers import ReadTimes
from p2pcache.core.membership.member_record import MemberRecord, Place, Reach
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.origin.settings import FILL_A_LINK, LEAST_PATIENCE_S
from p2pcache.core.settings import USUAL_OF, LeaseSettings
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet


@dataclass(slots=True)
class Lease:
    """A grant that runs. Times are the tracker's monotonic seconds."""

    node: NodeId
    place: Place  # of the node when it began
    since: float
    expires: float
    adopted: bool = False  # the read began before it
    held: bool = False  # another member came to have the run meanwhile


def lacked_by(record: MemberRecord) -> RunSet:
    """The runs that a reader has use for."""
    return record.wanted & ~record.have


def stands_aside(record: MemberRecord) -> bool:
    """Whether others may be unable to get what a reader reads: it gets a lease when no other reader may."""
    return record.reach in (Reach.SILENT, Reach.UNREACHABLE)


class Readers:
    """The members of a swarm that have credit, and indexes over their records.

    A reader whose read failed rests: it gets no lease. One whose reads take far longer than the others' rests, too. A
    reader that failed and is slow takes both rests in turn, the one after the failure first. One that gets far fewer
    runs than others is slow as long as it does.

    Invariants: `working` holds exactly the members with credit, `choosy` those of them that want some runs only,
    `unfit` those that stand aside or are slow, `resting` those that rest, `lagging` those that lag. Those that may have
    one more lease are in `idle` if they have none, else in `busy`.
    """

    def __init__(
        self, members: dict[NodeId, MemberRecord], settings: LeaseSettings, dice: random.Random
    ) -> None:
        """No member works on leases yet. The roster keeps `members` up to date."""
        self.working: dict[NodeId, MemberRecord] = {}
        self.choosy: set[NodeId] = set()
        self.unfit: set[NodeId] = set()
        self.resting: dict[NodeId, MemberRecord] = {}
        self.idle, self.busy = SampledSet(), SampledSet()
        self.lagging: set[NodeId] = set()
        self.times = ReadTimes(settings.slow_node_ratio)
        self.dice = dice
        self._members = members
        self._settings = settings
        self._concurrency = self._unmeasured()  # of all of them together

    def set_credit(self, record: MemberRecord, credit: int, wanted: RunSet) -> None:
        """How many leases at once a member works on (at most what the whole swarm may have), and of which runs."""
        record.credit = max(0, min(credit, self._settings.most_in_flight))
        record.wanted = wanted if record.credit else ALL
        if record.credit:
            self.working[record.node] = record
        else:
            self.working.pop(record.node, None)
            if not self.working:
                self._concurrency = self._unmeasured()  # by the next storm storage may have moved
            self._end_rest(record)
        if not record.credit or record.wanted != ALL:
            self.judge_anew(record)
        self.review(record)

    def review(self, record: MemberRecord) -> None:
        """A member has other credit, leases, pace or reach."""
        node, works = record.node, record.credit > 0
        room = len(record.runs) < record.credit and not record.failed_until
        for group, belongs in (
            (self.idle, room and not record.runs), (self.busy, room and bool(record.runs)),
            (self.choosy, record.wanted != ALL),
            (self.unfit, works and (stands_aside(record) or record.slow)),
        ):  # fmt: skip
            change = group.add if belongs else group.discard
            change(node)

    def reset(self, record: MemberRecord) -> None:
        """A member is gone, or banned: what is known of its reads is out of date. Its leases have ended before."""
        record.failures, record.reads, record.read_s = 0, 0.0, 0.0
        self.set_credit(record, 0, ALL)

    def on_progress(self, record: MemberRecord, reads: int) -> None:
        """A member said what it has, after so many reads of all members: did it get as many runs of late as were read?

        At most as many members lag as may rest: if most get little, it isn't their links.
        """
        if not record.credit or record.wanted != ALL:
            return
        before, now = record.judged, (reads, record.have.bit_count())
        if before is not None:
            given, got = now[0] - before[0], now[1] - before[1]
            if given < USUAL_OF:  # it may have all of them in hand
                return
            # Its link is as slow to storage, and its reads would be late.
            lags = self.times.lag(given, got) > self._settings.stuck_factor
            more = self.times.rule.allows_one_more(len(self.lagging), len(self.working))
            self._set_lags(record, lags=lags and (record.lags or more))
            self.review(record)
        record.judged = now

    def judge_anew(self, record: MemberRecord) -> None:
        """What a member got until now says nothing of its link: it began another pull, or wants a part."""
        record.judged = None
        self._set_lags(record, lags=False)

    # -- how reads end -----------------------------------------------------------------------------

    def on_read_done(
        self, record: MemberRecord, lease: Lease, now: float, in_flight: int, flow_s: float = 0.0
    ) -> None:
        """A read has ended well, with so many leases in flight; its bytes flowed for `flow_s` seconds, 0: not known."""
        took_s = now - lease.since
        self.concurrency.any_ended = True
        if not lease.adopted:  # or nobody knows how long it took
            self.concurrency.on_read_done(took_s, in_flight, flow_s, now)
        self.times.on_read(record, took_s)
        record.failures, record.failed_until, record.slow_until = 0, 0.0, 0.0
        self.resting.pop(record.node, None)
        slow = sum(1 for one in self.resting.values() if one.slow_until)
        may_be = self.times.rule.allows_one_more(slow, len(self.working))
        if may_be and self.times.is_slow(record, self.concurrency.crowd_s(in_flight)):
            self._convict(record, took_s, now)
        self.review(record)

    def on_lease_taken(self, record: MemberRecord, took_s: float, now: float) -> None:
        """A lease was taken from a reader since the read dragged on for so many seconds: the reader is slow."""
        self.times.on_delay(record, took_s)
        self._convict(record, took_s, now)
        self.review(record)

    def on_read_failed(self, record: MemberRecord, now: float) -> None:
        """A reader couldn't read from the origin: it rests, longer with each failure in a row."""
        record.failures += 1
        until = now + self._rest_s(record) * self.dice.uniform(0.5, 1.0)
        if record.credit:
            record.failed_until = until
            self.resting[record.node] = record
        self.review(record)

    def may_read(self, record: MemberRecord, run: RunIndex) -> bool:
        """Whether a reader has use for a run, and doesn't rest after a failed read."""
        return not record.failed_until and bool(lacked_by(record) >> run & 1)

    def may_read_soon(self, record: MemberRecord) -> bool:
        """Whether a reader doesn't rest after a failed read, or for a shorter time than a lease has at least."""
        return not record.failed_until or self._rest_s(record) < LEAST_PATIENCE_S

    # -- all together ------------------------------------------------------------------------------

    @property
    def concurrency(self) -> ReadConcurrency:
        """How many leases at once pay. Each of the able readers has one, up to as many as fill a link.

        They are few until the first read has ended, since all of them end together.
        """
        least = self._settings.in_flight
        if self._concurrency.any_ended:
            least = max(least, min(self.able, FILL_A_LINK))
        if least != self._concurrency.least:
            self._concurrency.set_least(least)
        return self._concurrency

    @property
    def able(self) -> int:
        """How many readers share the leases: all that don't stand aside and are as quick as the others, or else all.

        What slow readers don't read falls to the others.
        """
        return len(self.working) - len(self.unfit) or len(self.working) or 1

    # -- rests -------------------------------------------------------------------------------------

    def end_rests(self, now: float) -> None:
        """End rests that are over."""
        for record in [one for one in self.resting.values() if one.rests_until <= now]:
            if record.slow_until > now:
                record.failed_until = 0.0
            else:
                self._end_rest(record)
            self.review(record)

    def check(self) -> None:
        """Assert the invariants."""
        records = self._members.values()
        assert self.working.keys() == {one.node for one in records if one.credit}
        assert self.choosy == {one.node for one in records if one.wanted != ALL}
        assert self.resting.keys() <= self.working.keys()
        working = self.working.values()
        assert self.unfit == {o.node for o in working if stands_aside(o) or o.slow}
        assert self.lagging == {one.node for one in records if one.lags} <= self.working.keys()
        assert self.resting.keys() == {one.node for one in records if one.rests_until}
        room = {one for one in working if len(one.runs) < one.credit and not one.failed_until}
        assert set(self.busy) == {one.node for one in room if one.runs}
        assert set(self.idle) == {one.node for one in room if not one.runs}

    def _unmeasured(self) -> ReadConcurrency:
        return ReadConcurrency(self._settings.in_flight, self._settings.most_in_flight)

    def _set_lags(self, record: MemberRecord, *, lags: bool) -> None:
        record.lags = lags
        change = self.lagging.add if lags else self.lagging.discard
        change(record.node)

    def _convict(self, record: MemberRecord, took_s: float, now: float) -> None:
        if record.credit:
            record.slow_until = now + self.times.rule.rest * took_s
            self.resting[record.node] = record

    def _rest_s(self, record: MemberRecord) -> float:
        return backoff.pause_s(FIRST_REST_S, LAST_REST_S, record.failures - 1)

    def _end_rest(self, record: MemberRecord) -> None:
        self.resting.pop(record.node, None)
        record.failed_until = record.slow_until = 0.0

"""Which readers take far longer for their reads of the origin than the others: they rest, then are on probation."""

import dataclasses

from p2pcache.core.leases.settings import (
    FADE,
    LEAST_USUAL_S,
    PRIOR_READS,
    RECENT_READS,
    SLOW_READER,
)
from p2pcache.core.membership.member_record import MemberRecord, Pace
from p2pcache.core.stats import RollingMedian
from p2pcache.ids import NodeId


class SlowReaders:
    """Read times and verdicts, kept in the members' records.

    A verdict stands until a read is as quick as the others': the reader is SLOW while it rests, then on PROBATION.

    Invariants: `resting` holds exactly the members whose pace is SLOW, `convicted` those whose pace isn't USUAL.
    """

    def __init__(self, slow_ratio: float) -> None:
        """No read has ended yet.

        Args:
            slow_ratio: a reader that takes more than this many times the mean is slow.
        """
        self.usual_s = 1.0  # the median of recent read times, and never under the noise
        self.measured = False  # whether any read has ended
        self.resting: dict[NodeId, MemberRecord] = {}
        self.convicted: dict[NodeId, MemberRecord] = {}
        self._rule = dataclasses.replace(SLOW_READER, ratio=slow_ratio)
        self._recent = RollingMedian(RECENT_READS)
        self._shares = RollingMedian(RECENT_READS)  # of a read's time, for each read that shared it

    def usual_among_s(self, in_flight: int) -> float:
        """Usual seconds of a read while `in_flight` are under way: as of late, or longer if more share the way."""
        return max(self.usual_s, self._shares.median * in_flight)

    def on_read_done(
        self, record: MemberRecord, since: float, now: float, in_flight: int, readers: int
    ) -> None:
        """A read has ended well.

        Args:
            record: of the reader.
            since: when the read began; seconds.
            now: seconds.
            in_flight: reads at that moment, this one included.
            readers: how many nodes work on leases.
        """
        self._recent.add(now - since)
        self._shares.add((now - since) / in_flight)
        self.measured = True
        self.usual_s = max(LEAST_USUAL_S, self._recent.median)
        self._add(record, now - since)
        # A mean is compared with the mean: where some reads take much longer by chance, whichever node reads, the mean
        # of any reader is above the median, and one after the other was left out (docs/lab/0026).
        mean_s = max(LEAST_USUAL_S, self._recent.mean)
        pace_s = (record.read_s + PRIOR_READS * mean_s) / (record.reads + PRIOR_READS)
        others = len(self.resting) - (record.node in self.resting)
        may_rest = record.credit > 0 and self._rule.allows_one_more(others, readers)
        if may_rest and self._rule.is_slow(pace_s, mean_s, len(self._recent)):
            self._convict(record, since, now)
        else:
            self.acquit(record)

    def on_lease_taken(self, record: MemberRecord, since: float, now: float) -> None:
        """A lease was taken from a reader since the read, begun at `since`, dragged on: the reader is slow."""
        self._add(record, now - since)
        if record.credit:
            self._convict(record, since, now)

    def ends_in_time(self, record: MemberRecord, left: int, at_once: int) -> bool:
        """Whether a read of this reader would end before the others have read the rest, or all would wait for it.

        Args:
            record: of a reader whose pace isn't usual.
            left: runs that are to be read.
            at_once: reads that run at once.
        """
        return record.read_s * at_once <= record.reads * left * self.usual_s

    def end_rests(self, now: float) -> None:
        """Readers that have rested for long enough get another chance."""
        for record in [one for one in self.resting.values() if one.slow_until <= now]:
            self.end_rest(record)

    def end_rest(self, record: MemberRecord) -> None:
        """A slow reader is on probation from now on; no effect on others."""
        if self.resting.pop(record.node, None) is not None:
            record.pace = Pace.PROBATION

    def acquit(self, record: MemberRecord) -> None:
        """A reader is as quick as the others."""
        self.resting.pop(record.node, None)
        if self.convicted.pop(record.node, None) is not None:
            record.pace = Pace.USUAL
            record.verdicts = 0

    def reset(self, record: MemberRecord) -> None:
        """What is known of a reader is out of date: it is gone, or banned."""
        self.acquit(record)
        record.reads = record.read_s = 0.0

    def check(self, members: dict[NodeId, MemberRecord]) -> None:
        """Assert the invariants."""
        paces = {node: record.pace for node, record in members.items()}
        assert self.resting.keys() == {n for n, pace in paces.items() if pace is Pace.SLOW}
        assert self.convicted.keys() == {n for n, pace in paces.items() if pace is not Pace.USUAL}

    def _add(self, record: MemberRecord, read_s: float) -> None:
        record.reads = FADE * record.reads + 1
        record.read_s = FADE * record.read_s + read_s

    def _convict(self, record: MemberRecord, since: float, now: float) -> None:
        record.verdicts += 1
        record.slow_until = now + self._rule.probation_s(now - since, record.verdicts)
        record.pace = Pace.SLOW
        self.resting[record.node] = self.convicted[record.node] = record

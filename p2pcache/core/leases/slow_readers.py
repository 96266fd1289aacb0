"""How long reads of the origin take, and which readers take far longer for theirs than the others."""

from dataclasses import replace
from math import inf

from p2pcache.core.leases.settings import FADE, PRIOR_READS, SLOW_READER
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian


class ReadTimes:
    """The times of recent reads of all readers; the mean of each is in its record."""

    def __init__(self, slow_ratio: float) -> None:
        """No read has ended yet. A reader that takes more than `slow_ratio` times the mean is slow."""
        self.rule = replace(SLOW_READER, ratio=slow_ratio)
        self._recent = RollingMedian(USUAL_OF)
        self._shares = RollingMedian(USUAL_OF)  # of a read's time, for each read that shared it

    def usual_s(self, in_flight: int = 0) -> float:
        """Usual seconds of a read: as of late, or longer if `in_flight` share the way; inf before any has ended."""
        usual_s = max(self._recent.median, self._shares.median * in_flight)
        return usual_s if len(self._recent) else inf

    def on_read(self, record: MemberRecord, took_s: float, in_flight: int) -> None:
        """A reader's read has ended well after so many seconds, when so many were under way."""
        self._recent.add(took_s)
        self._shares.add(took_s / in_flight)
        self.on_delay(record, took_s)

    def on_delay(self, record: MemberRecord, took_s: float) -> None:
        """A read has taken a reader so long, and may go on."""
        record.reads = FADE * record.reads + 1
        record.read_s = FADE * record.read_s + took_s

    def is_slow(self, record: MemberRecord) -> bool:
        """Whether a reader takes far longer than the others.

        A mean is compared with the mean: where some reads take much longer by chance, whichever node reads, the mean of
        any reader is above the median, and one after the other was left out (docs/lab/0026).
        """
        mean_s = self._recent.mean
        pace_s = (record.read_s + PRIOR_READS * mean_s) / (record.reads + PRIOR_READS)
        return self.rule.is_slow(pace_s, mean_s, len(self._recent))

    def is_late(self, record: MemberRecord, left: int, at_once: int) -> bool:
        """Whether a reader would read a run, and hand it on as slowly, until the others have read the `left` runs."""
        return 2 * record.read_s * at_once > record.reads * left * self.usual_s()

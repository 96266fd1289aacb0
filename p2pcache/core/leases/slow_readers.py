"""How long reads of the origin take, and which readers take far longer for theirs than the others."""

from collections import deque
from dataclasses import replace
from math import inf

from p2pcache.core.leases.settings import FADE, PRIOR_READS, SLOW_READER
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian
from p2pcache.ids import NodeId


class ReadTimes:
    """The times of recent reads of all readers; the mean of each is in its record."""

    def __init__(self, slow_ratio: float) -> None:
        """No read has ended yet. A reader that takes more than `slow_ratio` times the mean is slow."""
        self.rule = replace(SLOW_READER, ratio=slow_ratio)
        self._recent = RollingMedian(USUAL_OF)
        self._readers: deque[NodeId] = deque(maxlen=USUAL_OF)  # of these reads
        self._lags = RollingMedian(USUAL_OF)  # as of late, of whichever member

    def usual_s(self, crowd_s: float = 0.0) -> float:
        """Usual seconds of a read: as of late, or `crowd_s` if that is longer; inf before any has ended."""
        return max(self._recent.median, crowd_s) if len(self._recent) else inf

    def on_read(self, record: MemberRecord, took_s: float) -> None:
        """A reader's read has ended well after so many seconds."""
        self._recent.add(took_s)
        self._readers.append(record.node)
        self.on_delay(record, took_s)

    def on_delay(self, record: MemberRecord, took_s: float) -> None:
        """A read has taken a reader so long, and may go on."""
        record.reads = FADE * record.reads + 1
        record.read_s = FADE * record.read_s + took_s

    def is_slow(self, record: MemberRecord, crowd_s: float) -> bool:
        """Whether a reader takes far longer than the others, and than `crowd_s`, as long as those under way take.

        It is compared with at least as many reads of others as the rule wants samples: alone, one hiccup would make
        it slow beside its own reads before.
        While more and more run the reads of late were quicker than any is now, and the first to read was left out. A
        mean is compared with the mean: where some reads take much longer by chance, whichever node reads, the mean of
        any reader is above the median, and one after the other was left out (docs/lab/0026).
        """
        if sum(node != record.node for node in self._readers) < self.rule.min_samples:
            return False
        mean_s = max(self._recent.mean, crowd_s)
        pace_s = (record.read_s + PRIOR_READS * mean_s) / (record.reads + PRIOR_READS)
        return self.rule.is_slow(pace_s, mean_s, len(self._recent))

    def lag(self, given: int, got: int) -> float:
        """How many times fewer runs than usual a member got that has got so many while so many were given."""
        lag = max(1.0, given / got) if got > 0 else inf
        self._lags.add(lag)
        return lag / self._lags.median if self._lags.median < inf else 1.0

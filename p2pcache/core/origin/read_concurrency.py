"""How many reads of storage run at once: the usual number, or as many as the path to storage holds.

An adaptive concurrency limit, as in Netflix's library of that name. Little's law (Little 1961) says how many reads are
under way: reads a second times seconds a read. While storage is near, the usual reads fill the path and more of them
only wait for one another. While it is far, each read takes its time whatever the others do, and more reads bring more
bytes (docs/lab/0028, docs/lab/0029).
"""

from enum import Enum, auto
from math import ceil
from statistics import fmean

from p2pcache.core.origin.settings import (
    ALONE_RATIO,
    DROP_RATIO,
    FILL_RATIO,
    FIRST_READS,
    MAX_RETRY_READS,
    MIN_GAIN,
    MIN_GAIN_DOUBLED,
    MIN_READ_S,
    MIN_STEP,
    RETRY_READS,
    RETRY_READS_FAR,
    SAMPLE_READS,
    SAMPLES,
    SHARED_RATIO,
)
from p2pcache.core.stats import median


class _Phase(Enum):
    FIRST = auto()  # the first reads
    USUAL = auto()  # the usual number
    FEWER = auto()  # a trial begins: fewer reads, which don't wait for one another
    AS_BEFORE = auto()  # then the number as before
    MORE = auto()  # then twice the usual number
    AS_HELD = auto()  # as many as the path holds


class ReadConcurrency:
    """The number of reads that may run at once between one or more nodes and storage.

    While the path is full, nobody can see how long a read takes alone, and single reads differ by several times. So it
    is tried: fewer reads run for a moment. If each of them takes less time, the reads had waited for one another, and
    the limit stays at the usual number. If not, twice as many are tried. If these bring more, the limit is three times
    what the path holds by Little's law, until each read takes longer.

    Only the times of reads count and no clock, so pauses and idle nodes don't matter.

    Invariant: `usual` <= `limit` <= `most`, except for fewer reads during a trial.
    """

    def __init__(self, usual: int, most: int) -> None:
        """Begin with the usual number.

        Args:
            usual: reads at once where storage is near.
            most: reads at once that are never exceeded.
        """
        self._usual = usual
        self.most = max(usual, most)
        self.limit = usual  # reads that may run at once
        self._phase = _Phase.FIRST
        self._times: list[float] = []  # seconds of the reads in this sample
        self._under_way = 0  # sum over the sample: reads that ran when each of them ended
        self._first_s = 0.0  # the median of the first reads; 0.0: it doesn't apply any more
        self._alone_s = 0.0  # the mean of the reads in a trial with fewer ...
        self._fewer = 0.0  # ... and how many of them ran at once
        self._resume = usual  # the limit before the trial
        self._skip = 0  # reads that began under another limit
        self._retry_reads = RETRY_READS
        self._until_retry = RETRY_READS
        self._alone_samples = 0  # samples in which usual reads were as quick as the first ones
        self._rate = 0.0  # reads a second in the last sample; 0.0: there was none

    def on_read_done(self, took_s: float, under_way: int) -> None:
        """A run was read.

        Args:
            took_s: seconds.
            under_way: reads that ran at that moment, this one included.
        """
        self._until_retry -= 1
        if self._skip > 0:
            self._skip -= 1
            return
        self._times.append(took_s)
        self._under_way += under_way
        if len(self._times) >= self._sample_size:
            self._evaluate()

    @property
    def _sample_size(self) -> int:
        if self._phase is _Phase.FIRST:
            return FIRST_READS
        if self._phase is _Phase.USUAL:
            return SAMPLE_READS
        # Reads that began together end together, so samples are whole rounds; the deciding one has two.
        rounds = 2 if self._phase is _Phase.MORE else ceil(SAMPLE_READS / self.limit)
        return rounds * self.limit

    def _evaluate(self) -> None:
        """A sample is complete."""
        times, under_way = self._times, self._under_way / len(self._times)
        mean_s = max(fmean(times), MIN_READ_S)
        self._times, self._under_way = [], 0
        match self._phase:
            case _Phase.FIRST:
                self._first_s = median(times)
                self._enter(_Phase.USUAL, self._usual)
            case _Phase.USUAL:
                self._compare_with_first(median(times))
            case _:
                self._judge(mean_s, under_way)

    def _compare_with_first(self, usual_s: float) -> None:
        """Begin a trial if usual reads take as long as the first few did, so that they don't wait for one another."""
        if usual_s < SHARED_RATIO * self._first_s:
            clearly = usual_s < ALONE_RATIO * self._first_s
            self._alone_samples += SAMPLES if clearly else 1
        if self._alone_samples >= SAMPLES or self._until_retry <= 0:
            self._begin_trial()

    def _judge(self, mean_s: float, under_way: float) -> None:
        """Compare the rate of this sample with the one before.

        Args:
            mean_s: seconds a read took.
            under_way: reads that ran at once, on average.
        """
        gain = under_way / mean_s / (self._rate or 1.0)
        self._rate = under_way / mean_s
        if self._phase is _Phase.FEWER:
            self._alone_s, self._fewer = mean_s, under_way
            self._enter(_Phase.AS_BEFORE, self._resume)
        elif self._phase is _Phase.AS_BEFORE and self.limit == self._usual:
            step = under_way / self._fewer
            if step >= MIN_STEP and gain - 1 >= MIN_GAIN * (step - 1):
                self._enter(_Phase.MORE, min(2 * self._usual, self.most))
            else:
                self._enter(_Phase.USUAL, self._usual)
        elif self._phase is _Phase.MORE and gain < MIN_GAIN_DOUBLED:
            self._enter(_Phase.USUAL, self._usual)
        else:
            self._follow(mean_s)

    def _follow(self, mean_s: float) -> None:
        """More reads pay: set the limit to what the path holds, until the next trial."""
        if self._phase is _Phase.MORE:
            self._until_retry = self._retry_reads = max(self._retry_reads, RETRY_READS_FAR)
        self._phase = _Phase.AS_HELD
        longer = mean_s / self._alone_s
        limit = max(self._usual, min(self.most, int(FILL_RATIO * self.limit / longer)))
        if limit > self.limit or limit < DROP_RATIO * self.limit:
            self._enter(_Phase.AS_HELD, limit)
        if self._until_retry <= 0:
            self._begin_trial()

    def _begin_trial(self) -> None:
        if not 1 < self._usual < self.most:
            return  # the limit can't be lower or higher
        self._until_retry = self._retry_reads
        self._retry_reads = min(2 * self._retry_reads, MAX_RETRY_READS)
        self._resume = self.limit
        self._alone_samples = 0
        self._enter(_Phase.FEWER, max(self._usual // 2, self.limit // 4))

    def _enter(self, phase: _Phase, limit: int) -> None:
        self._skip = self.limit
        if phase in {_Phase.AS_BEFORE, _Phase.MORE}:
            self._skip += limit  # of reads that begin together the quick ones end first
        if phase is _Phase.USUAL and self._phase is not _Phase.FIRST:
            self._first_s = 0.0  # from here on only the number of reads begins a trial
        self._phase, self.limit = phase, limit

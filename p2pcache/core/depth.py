"""How many reads of storage run at once: the usual ones, or as many as the way to it holds. Pure."""

from enum import Enum, auto
from math import ceil
from statistics import fmean, median_high

_FIRST = 8  # reads of a beginning, few at once: what they take, most take without the others
_SOME = 16  # reads that are looked at together
# Reads that take so many times what the first ones took wait for one another: the way is full, and nobody needs to ask.
# (Single reads differ: with 1.5 far storage looks near too often, with 2 near storage at 40 ms looks far.)
_SHARED = 1.75
_PAYS = 0.4  # of what more reads could bring at most they must bring so much, or they only wait for one another
_MORE = 1.5  # times as many are more: fewer say nothing
# Times what the way holds: those that begin together end together, and most would only wait (decision 0028).
_TIMES = 3
_LOWER = 0.8  # times as many are fewer: what is measured swings
_AGAIN = 256  # reads until it is asked again, doubled each time ...
_AGAIN_FAR = 2048  # ... and never sooner where the way holds more: to ask costs a little of it
_MOST_AGAIN = 8192


class _Phase(Enum):
    FIRST = auto()  # the first few reads
    USUAL = auto()  # the usual reads
    FEWER = auto()  # fewer for a moment, which don't wait for one another: what one takes alone
    AS_HELD = auto()  # as before, or what the way holds


class Depth:
    """The reads that may run at once between one or more nodes and storage.

    What a read takes alone can't be seen while the way is full, and single reads differ by several times, so
    that the quickest ones say nothing. It is tried instead: fewer reads run for a moment. If each takes less
    time then, they had waited for one another, and it stays at the usual number. If not, a read takes its time
    whatever the others do, and three times as many may run, until each does take longer (Little's law).

    Only what reads took is looked at, no clock: pauses, and nodes that take none, say nothing then.

    Invariant: `usual` <= `reads` <= `most`, but fewer for a moment.
    """

    def __init__(self, usual: int, most: int) -> None:
        """Begin with the usual ones.

        Args:
            usual: reads at once where storage is near.
            most: never more.
        """
        self._usual = usual
        self.most = max(usual, most)
        self.reads = usual  # so many may run at once
        self._phase = _Phase.FIRST
        self._times: list[float] = []  # of the reads that are looked at now
        self._beside = 0  # how many ran when each of them ended, in all
        self._first_s = 0.0  # what the first ones took; 0.0: without a meaning by now
        self._alone_s = 0.0  # what one took when there were fewer ...
        self._fewer = 0.0  # ... and how many there were
        self._resume = usual  # so many ran before it was asked
        self._skip = 0  # reads that began under another number
        self._again = _AGAIN
        self._until_again = 2 * _AGAIN

    def ended(self, took_s: float, under_way: int) -> None:
        """A run was read, which took so long; so many reads were under way, this one among them."""
        self._until_again -= 1
        if self._skip > 0:
            self._skip -= 1
            return
        self._times.append(took_s)
        self._beside += under_way
        if len(self._times) >= self._needed:
            self._look()

    @property
    def _needed(self) -> int:
        if self._phase is _Phase.FIRST:
            return _FIRST
        # Those that began together end together: whole rounds of them.
        return _SOME if self._phase is _Phase.USUAL else ceil(_SOME / self.reads) * self.reads

    def _look(self) -> None:
        """Enough reads have ended to say something."""
        times, beside = self._times, self._beside / len(self._times)
        self._times, self._beside = [], 0
        match self._phase:
            case _Phase.FIRST:
                self._first_s = median_high(times)
                self._go(_Phase.USUAL, self._usual)
            case _Phase.USUAL:
                if median_high(times) < _SHARED * self._first_s or self._until_again <= 0:
                    self._ask()
            case _Phase.FEWER:
                self._alone_s, self._fewer = fmean(times), beside
                self._go(_Phase.AS_HELD, self._resume)
            case _Phase.AS_HELD:
                self._judge(fmean(times), beside)

    def _judge(self, took_s: float, beside: float) -> None:
        """More take so long: do more of them end than of the fewer?"""
        times_more = beside / self._fewer if self._fewer else 0.0
        gain = times_more * self._alone_s / took_s if took_s else times_more
        if self.reads == self._usual:
            if gain - 1 < _PAYS * (times_more - 1) or times_more < _MORE:
                self._first_s = 0.0
                self._go(_Phase.USUAL, self._usual)
                return
            self._until_again = self._again = max(self._again, _AGAIN_FAR)
        longer = took_s / self._alone_s if self._alone_s else 1.0
        reads = max(self._usual, min(self.most, int(_TIMES * self.reads / longer)))
        if reads > self.reads or reads < _LOWER * self.reads:
            self._go(_Phase.AS_HELD, reads)
        if self._until_again <= 0:
            self._ask()

    def _ask(self) -> None:
        if not 1 < self._usual < self.most:
            return  # fewer or more can't be
        self._until_again = self._again
        self._again = min(2 * self._again, _MOST_AGAIN)
        self._resume = self.reads
        self._go(_Phase.FEWER, max(self._usual // 2, self.reads // 4))

    def _go(self, phase: _Phase, reads: int) -> None:
        self._skip = self.reads
        self._phase, self.reads = phase, reads

"""How many reads of storage run at once: the usual ones, or as many as the way to it holds. Pure."""

from enum import Enum, auto
from math import ceil
from statistics import fmean, median_high

_FIRST = 8  # reads of a beginning, few at once: what they take, most take without the others
_SOME = 16  # reads that are looked at together
# Reads that take so many times what the first ones took wait for one another: the way is full, and nobody needs to ask.
# (With 1.75 two of six storms of eight real agents, which begin with slow connections, asked in vain.)
_SHARED = 1.5
_CLEARLY_ALONE = 1.25  # ... and that take hardly longer don't; in between three looks must agree
_LOOKS = 3
_PAYS = 0.2  # of what more reads could bring at most they must bring so much, or they only wait for one another
_MORE = 1.5  # times as many are more: fewer say nothing
# ... and twice the usual reads must bring so many times as much: with the usual ones' links busy with what comes from
# neighbours, half of them bring less in a near storm, too (8 real nodes: 0.85 of the bound, and 0.94).
_PAYS_MORE = 1.15
_LEAST_S = 1e-6  # clocks have a grain
# Times what the way holds: those that begin together end together, and most would only wait (decision 0028).
_TIMES = 3
_LOWER = 0.8  # times as many are fewer: what is measured swings
_AGAIN = 512  # reads until it is asked again, doubled each time ...
_AGAIN_FAR = 2048  # ... and never sooner where the way holds more: to ask costs a little of it
_MOST_AGAIN = 8192


class _Phase(Enum):
    FIRST = auto()  # the first few reads
    USUAL = auto()  # the usual reads
    FEWER = auto()  # fewer for a moment, which don't wait for one another: what one takes alone
    AS_BEFORE = auto()  # then as before
    MORE = auto()  # then more than usual: whether that pays, too
    AS_HELD = auto()  # what the way holds


class Depth:
    """The reads that may run at once between one or more nodes and storage.

    What a read takes alone can't be seen while the way is full, and single reads differ by several times, so
    that the quickest ones say nothing. It is tried instead: fewer reads run for a moment. If each takes less
    time then, they had waited for one another, and it stays at the usual number. If not, a read takes its time
    whatever the others do: twice as many are tried, and if that pays three times as many may run, until each
    does take longer (Little's law).

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
        self._until_again = _AGAIN
        self._alone = 0  # looks that found usual reads as quick as the first ones
        self._carried = 0.0  # reads in a second, when it was looked last; 0.0: it wasn't

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
        if self._phase is _Phase.USUAL:
            return _SOME
        # Those that began together end together: whole rounds of them. Where it is decided, two.
        rounds = 2 if self._phase is _Phase.MORE else ceil(_SOME / self.reads)
        return rounds * self.reads

    def _look(self) -> None:
        """Enough reads have ended to say something."""
        times, beside = self._times, self._beside / len(self._times)
        took_s = max(fmean(times), _LEAST_S)
        self._times, self._beside = [], 0
        match self._phase:
            case _Phase.FIRST:
                self._first_s = median_high(times)
                self._go(_Phase.USUAL, self._usual)
            case _Phase.USUAL:
                self._compare(median_high(times))
            case _:
                self._judge(took_s, beside)

    def _compare(self, usual_s: float) -> None:
        """Whether usual reads take as long as the first few did, or wait for one another."""
        if usual_s < _SHARED * self._first_s:
            self._alone += _LOOKS if usual_s < _CLEARLY_ALONE * self._first_s else 1
        if self._alone >= _LOOKS or self._until_again <= 0:
            self._ask()

    def _judge(self, took_s: float, beside: float) -> None:
        """So many reads took so long: do more of them end in a second than of those before?"""
        gain = beside / took_s / (self._carried or 1.0)
        self._carried = beside / took_s
        if self._phase is _Phase.FEWER:
            self._alone_s, self._fewer = took_s, beside
            self._go(_Phase.AS_BEFORE, self._resume)
        elif self._phase is _Phase.AS_BEFORE and self.reads == self._usual:
            times_more = beside / self._fewer
            if times_more >= _MORE and gain - 1 >= _PAYS * (times_more - 1):
                self._go(_Phase.MORE, min(2 * self._usual, self.most))
            else:
                self._go(_Phase.USUAL, self._usual)
        elif self._phase is _Phase.MORE and gain < _PAYS_MORE:
            self._go(_Phase.USUAL, self._usual)
        else:
            self._follow(took_s)

    def _follow(self, took_s: float) -> None:
        """More reads pay: as many as the way holds, as long as it isn't asked again."""
        if self._phase is _Phase.MORE:
            self._until_again = self._again = max(self._again, _AGAIN_FAR)
        self._phase = _Phase.AS_HELD
        longer = took_s / self._alone_s
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
        self._alone = 0
        self._go(_Phase.FEWER, max(self._usual // 2, self.reads // 4))

    def _go(self, phase: _Phase, reads: int) -> None:
        self._skip = self.reads
        if phase in {_Phase.AS_BEFORE, _Phase.MORE}:
            self._skip += reads  # of those that begin together the quick ones end first
        if phase is _Phase.USUAL and self._phase is not _Phase.FIRST:
            self._first_s = 0.0  # only the number of reads makes it ask again
        self._phase, self.reads = phase, reads

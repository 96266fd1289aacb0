"""How many reads of storage run at once: the usual ones, or as many as the way to it holds. Pure."""

from enum import Enum, auto
from math import ceil
from statistics import median_high

_FIRST = 8  # reads of a beginning, few at once: what they take, most take without the others
_SOME = 16  # reads that are looked at together
# Reads that take so many times what the first ones took wait for one another: the way is full, and nobody needs to ask.
# (Single reads differ: with 1.5 far storage looks near too often, with 2 near storage at 40 ms looks far.)
_SHARED = 1.75
_PAYS = 1.4  # twice as many reads at once must bring so many times as much, or they only wait for one another
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
    that the quickest ones say nothing. It is tried instead: fewer reads run for a moment. If no less comes,
    the way was full. If less comes, a read takes its time whatever the others do; that time and what comes
    with more of them say how many are under way (Little's law), and it is tried with three times as many.

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
        self._first_s = 0.0  # what the first ones took; 0.0: without a meaning by now
        self._alone_s = 0.0
        self._resume = usual  # so many ran before it was asked
        self._skip = 0  # reads that began under another number
        self._count = 0
        self._since: float | None = None  # when the first of them ended
        self._again = _AGAIN
        self._until_again = 2 * _AGAIN

    def short(self) -> None:
        """Not all reads that may run do: how many end now says nothing."""
        self._since = None

    def ended(self, now: float, took_s: float) -> None:
        """A run was read, which took so long."""
        self._until_again -= 1
        if self._skip > 0:
            self._skip -= 1
        elif self._phase is _Phase.FIRST or self._phase is _Phase.USUAL:
            self._times.append(took_s)
            self._compare()
        elif rate := self._rate(now):
            self._judge(rate)

    def _compare(self) -> None:
        """Whether the usual reads take much longer than the first ones did."""
        if len(self._times) < (_FIRST if self._phase is _Phase.FIRST else _SOME):
            return
        usual_s = median_high(self._times)
        self._times.clear()
        if self._phase is _Phase.FIRST:
            self._first_s = usual_s
            self._go(_Phase.USUAL, self._usual)
        elif usual_s < _SHARED * self._first_s or self._until_again <= 0:
            self._ask()

    def _rate(self, now: float) -> float:
        """Reads that ended in a second, once enough did; 0.0 before."""
        if self._since is None:
            self._since, self._count = now, 0
            return 0.0
        self._count += 1
        # Those that began together end together: whole rounds of them, or the first gust counts and the last doesn't.
        if self._count < ceil(_SOME / self.reads) * self.reads or now <= self._since:
            return 0.0
        rate = self._count / (now - self._since)
        self._since = None
        return rate

    def _judge(self, rate: float) -> None:
        if self._phase is _Phase.FEWER:
            self._alone_s = self.reads / rate
            self._go(_Phase.AS_HELD, self._resume)
            return
        held = rate * self._alone_s
        if held < _PAYS * (self._usual // 2):
            self._first_s = 0.0
            self._go(_Phase.USUAL, self._usual)
            return
        if self.reads == self._usual:
            self._until_again = self._again = max(self._again, _AGAIN_FAR)
        reads = max(self._usual, min(self.most, int(_TIMES * held)))
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
        self._phase, self.reads, self._since = phase, reads, None

"""How many reads of storage run at once, and how quickly they begin: as many as the way to storage holds.

A read waits first: for its turn, for the request's way and for storage. Then its bytes flow. While it waits others can
use the link, so the way holds as many reads more as the link brings in that time (its bandwidth-delay product, or
Little's law: Little 1961).
"""

from dataclasses import dataclass
from math import inf

from p2pcache.core.leases.settings import EVEN_PACE, RATE_FADE, UNEVEN_PACE, WAIT_RATIO
from p2pcache.core.origin.settings import MIN_READ_S, MOST_TIMES


@dataclass(slots=True)
class _Sample:
    """As many reads as ran at once. Sums over them, in seconds."""

    under_way: int = 0  # reads that ran when one of them ended, the most
    reads: int = 0
    waited_s: float = 0.0  # for first bytes
    varied_s: float = 0.0  # by which their waits differ from the mean before
    flowed_s: float = 0.0
    busy_s: float = 0.0  # time in which bytes of any of them flowed


class ReadConcurrency:
    """The number of reads that may run at once between one or more nodes and storage, and how quickly they begin.

    `least` reads never crowd one another out, nor do as many as the link brings while one flows alone: storage may
    limit each connection. `WAIT_RATIO` times as many more run as the link brings while a read waits. The link's rate is
    taken over the time in which bytes flow. It is the most of late: a sample between two gusts says too little. Until
    the first sample is whole each read that ends tells it anew. And never do more run than `MOST_TIMES` as many as if
    reads waited for the shortest time that was seen: where storage serves one read after the other, more only wait
    longer.

    Reads beyond `least` begin hardly more quickly than the link brings them, or those that begin together end together,
    and nothing flows while all of them wait. They begin more quickly while they wait unevenly, since chance parts them
    then, and while they don't slow one another down, since the link may bring more (as in BBR: Cardwell and others
    2016). Until the first sample is whole as many as may run begin while one waits.

    Invariant: `least` <= `limit` <= `most`.
    """

    def __init__(self, least: int, most: int) -> None:
        """No read has ended yet.

        Args:
            least: reads at once that never crowd one another out.
            most: reads at once that are never exceeded.
        """
        self.least = least
        self.most = max(least, most)
        self.limit = least  # reads that may run at once
        # As many as the way holds if each waits for the shortest time that was seen.
        self.pays = float(least)
        self.any_ended = False  # whether a read has ended well, measured or not
        self.next_at = 0.0  # when the next read may begin beyond `least`, in seconds
        self._gap_s = 0.0  # between two of them
        self._link_rate = 0.0  # reads a second, while any flow
        # Means of a sample: how long reads waited, and the shortest times for which they waited and flowed.
        self._wait_s, self._least_wait_s, self._least_flow_s = 0.0, inf, inf
        self._sample, self._first = _Sample(), True
        self._ended_at = -inf  # the last read

    @property
    def measured(self) -> bool:
        """Whether a read has told what the way holds."""
        return self._link_rate > 0.0

    def crowd_s(self, under_way: int) -> float:
        """Mean seconds of a read, at least, while so many are under way (Little's law); 0.0: not known yet."""
        return 0.0 if self._first else under_way / self._link_rate

    def set_least(self, least: int) -> None:
        """Another number of reads at once never crowds one another out."""
        self.least = min(least, self.most)
        if self.measured:
            self.pays = self._held(self._least_wait_s)
            limit = min(self._held(self._wait_s), MOST_TIMES * self.pays)
            self.limit = min(self.most, round(limit))
        else:
            self.limit, self.pays = self.least, float(self.least)

    def may_begin(self, under_way: int, now: float) -> bool:
        """Whether one more read may begin beside those under way; if only the time isn't there, from `next_at` on."""
        return under_way < self.least or (under_way < self.limit and now >= self.next_at)

    def on_begun(self, under_way: int, now: float) -> None:
        """A read has begun; with it so many are under way."""
        if under_way > self.least:
            self.next_at = max(self.next_at, now - self._gap_s) + self._gap_s

    def on_read_done(self, took_s: float, under_way: int, flow_s: float, now: float) -> None:
        """A run was read.

        Args:
            took_s: seconds.
            under_way: reads that ran at that moment, this one included.
            flow_s: seconds from its first byte to its end; 0: not known, it counts as if nothing was waited for.
            now: seconds.
        """
        one, flow_s = self._sample, min(flow_s, took_s) or took_s
        one.reads += 1
        one.waited_s += took_s - flow_s
        one.varied_s += abs(took_s - flow_s - self._wait_s)
        one.flowed_s += flow_s
        one.busy_s += now - max(now - flow_s, self._ended_at)
        self._ended_at = now
        one.under_way = max(one.under_way, under_way)
        whole = one.reads >= max(self.limit, one.under_way)
        if whole or self._first:
            self._measure(one)
        if whole:
            self._sample, self._first = _Sample(), False

    def _measure(self, one: _Sample) -> None:
        self._link_rate = max(one.reads / max(one.busy_s, MIN_READ_S), RATE_FADE * self._link_rate)
        self._wait_s = one.waited_s / one.reads
        self._least_wait_s = min(self._least_wait_s, self._wait_s)
        self._least_flow_s = min(self._least_flow_s, one.flowed_s / one.reads)
        self.set_least(self.least)
        if self._first:
            self._gap_s = self._wait_s / self.limit
            return
        unevenness = one.varied_s / max(one.waited_s, MIN_READ_S)
        # Several that flow side by side and are no slower for it, of all: each is limited, and the link may bring more.
        limited = (one.reads * self._least_flow_s - one.busy_s) / max(one.flowed_s, MIN_READ_S)
        # After a silence waits differ more from those before than they are long, and all reads would begin in a gust.
        more = min(1.0, max(unevenness, limited))
        self._gap_s = 1 / ((EVEN_PACE + UNEVEN_PACE * more) * self._link_rate)

    def _held(self, wait_s: float) -> float:
        """How many reads the way holds if each waits for so long."""
        flowing = max(self.least, self._link_rate * self._least_flow_s)
        return flowing + WAIT_RATIO * self._link_rate * wait_s

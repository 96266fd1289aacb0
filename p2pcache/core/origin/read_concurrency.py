"""How many reads of storage run at once: as many as the way to it holds.

Little's law (Little 1961): reads under way = reads a second times seconds a read. While the way has room a read takes
as long as it took when few ran, and more reads bring more bytes. On a full way more reads only wait for one another:
each takes longer, all end late, and until then there is nothing to spread.
"""

from math import inf
from statistics import fmean

from p2pcache.core.origin.settings import (
    FLOW_RATIO,
    MIN_READ_S,
    MOST_TIMES,
    QUICK_S,
    SAME_RATE,
    WAIT_RATIO,
)


class ReadConcurrency:
    """The number of reads that may run at once between one or more nodes and storage.

    A read waits first: for its turn, for the request's way and for storage. Then its bytes flow. `least` reads are to
    flow at any moment, so `WAIT_RATIO` times as many are added as wait on average. Where reads are quick more may flow,
    as long as each flows nearly as quickly as the first few did: storage limits single connections, and a full link
    doesn't (delay-based congestion control: TCP Vegas, Brakmo and Peterson 1995). Where they aren't, a link is the
    limit, and a further connection would starve beside those that fill its queue. And never do more run than
    `MOST_TIMES` as many as brought the same: where storage serves one read after the other, they only wait longer.

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
        self._waiting = self._flowing = 0.0  # reads that may wait, and flow, as of the last sample
        self._alone_s = inf  # the shortest time for which a read typically flows
        self._best_rate = 0.0  # the highest rate so far, in reads per second
        self._best_count = inf  # reads under way at that rate
        self._took_s: list[float] = []  # of the reads in this sample
        self._flow_s: list[float] = []
        self._under_way = 0  # sum over the sample: reads that ran when each of them ended
        self._since = inf  # when the sample began

    def set_least(self, least: int) -> None:
        """Another number of reads at once never crowds one another out."""
        self.least = min(least, self.most)
        wanted = min(self._waiting + max(self.least, self._flowing), MOST_TIMES * self._best_count)
        self.limit = max(self.least, min(self.most, round(wanted)))

    def on_read_done(self, took_s: float, under_way: int, flow_s: float, now: float) -> None:
        """A run was read.

        Args:
            took_s: seconds.
            under_way: reads that ran at that moment, this one included.
            flow_s: seconds from its first byte to its end; 0: not known, it counts as if nothing was waited for.
            now: seconds.
        """
        self._since = min(self._since, now - took_s)
        self._took_s.append(max(took_s, MIN_READ_S))
        self._flow_s.append(min(flow_s, took_s) or took_s)
        self._under_way += under_way
        if len(self._took_s) < self.limit:
            return
        ended, mean_s, flow_s = len(self._took_s), fmean(self._took_s), fmean(self._flow_s)
        rate = ended / max(now - self._since, MIN_READ_S)
        # Little's law gives the reads under way. Pauses make its rate too low; reads that end together make the mean
        # of the counts too low. The larger number is right.
        count = max(self._under_way / ended, rate * mean_s)
        self._alone_s = min(self._alone_s, max(flow_s, MIN_READ_S))
        self._took_s, self._flow_s, self._under_way, self._since = [], [], 0, now
        # Of the reads under way as large a share is in one stage as the stage takes of their time.
        self._waiting = WAIT_RATIO * count * (1 - flow_s / mean_s)
        self._flowing = FLOW_RATIO * count * self._alone_s / mean_s if flow_s < QUICK_S else 0.0
        same = self._best_rate / SAME_RATE <= rate <= self._best_rate * SAME_RATE
        if not same or count < self._best_count:
            self._best_rate, self._best_count = rate, count
        self.set_least(self.least)

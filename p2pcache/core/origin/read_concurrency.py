"""How many reads of storage run at once: as many as the way to it holds.

Little's law (Little 1961): reads under way = reads a second times seconds a read. While the way has room a read takes as
long as it took when few ran, and more reads bring more bytes. On a full way more reads only wait for one another, each
takes longer, and bytes that nobody can use yet crowd out those that somebody waits for.
"""

from math import inf
from statistics import fmean

from p2pcache.core.origin.settings import FLOW_RATIO, MIN_READ_S, WAIT_RATIO
from p2pcache.core.stats import median


class ReadConcurrency:
    """The number of reads that may run at once between one or more nodes and storage.

    A read waits first: for its turn, for the request's way and for storage. Then its bytes flow. While some wait others
    must flow, so reads that wait are added to those that flow, `WAIT_RATIO` times as many as wait on average. And more
    may flow as long as each flows nearly as quickly as the first few did: storage limits single connections, and a full
    link doesn't (delay-based congestion control: TCP Vegas, Brakmo and Peterson 1995).

    Only the times of reads count and no clock, so pauses and idle nodes don't matter.

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
        self._waiting = self._flowing = 0.0  # reads that may wait, and flow, as of the last sample
        self._alone_s = inf  # the shortest time for which a read typically flows
        self._took_s: list[float] = []  # of the reads in this sample
        self._flow_s: list[float] = []
        self._under_way = 0  # sum over the sample: reads that ran when each of them ended

    @property
    def limit(self) -> int:
        """Reads that may run at once."""
        return min(self.most, round(self._waiting + max(self.least, self._flowing)))

    def on_read_done(self, took_s: float, under_way: int, flow_s: float = 0.0) -> None:
        """A run was read.

        Args:
            took_s: seconds.
            under_way: reads that ran at that moment, this one included.
            flow_s: seconds from its first byte to its end; 0: not known, it counts as if nothing was waited for.
        """
        self._took_s.append(max(took_s, MIN_READ_S))
        self._flow_s.append(min(flow_s, took_s) or took_s)
        self._under_way += under_way
        if len(self._took_s) < self.limit:
            return
        count, took_s = self._under_way / len(self._took_s), fmean(self._took_s)
        wait_s = took_s - fmean(self._flow_s)
        self._alone_s = min(self._alone_s, max(median(self._flow_s), MIN_READ_S))
        self._took_s, self._flow_s, self._under_way = [], [], 0
        # Little's law: of the reads under way, as large a share is in one stage as the stage takes of their time.
        self._waiting = WAIT_RATIO * count * wait_s / took_s
        self._flowing = FLOW_RATIO * count * self._alone_s / took_s

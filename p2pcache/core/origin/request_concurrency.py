"""How many requests to storage a node has under way that reads alone: as many as bring more."""

from dataclasses import dataclass
from math import inf

from p2pcache.core.origin.settings import (
    JOIN_S,
    JOIN_SHARE,
    JOIN_WAITS,
    MIN_READ_S,
    MOST_TIMES,
)


@dataclass(slots=True)
class _Sample:
    """As many requests as ran at once."""

    began: float  # seconds
    under_way: int = 0  # requests that ran when one of them ended, the most
    requests: int = 0
    runs: int = 0
    waited_s: float = 0.0  # for first bytes, in sum
    flowed_s: float = 0.0


class RequestConcurrency:
    """The number of requests that may be under way, each of some consecutive runs.

    By Little's law (Little 1961) the way to storage holds the rate times what a request takes if none waits for others:
    as in the quickest sample. Twice as many are under way (the gain of BBR: Cardwell and others 2016). So they become
    more while that raises the rate; where they only wait for one another they stay at twice what brought as much.
    """

    def __init__(self, least: int, most: int) -> None:
        """No request has ended yet. So many requests never crowd one another out; `most` aren't exceeded."""
        self.least = least
        self.most = max(least, most)
        self._rate = 0.0  # runs a second
        # Shortest means of a sample: until the first byte of a request, and from one run of it to the next.
        self._wait_s, self._flow_s = inf, inf
        self._last_flow_s = 0.0  # of a run, in the last sample
        self._sample: _Sample | None = None

    def limit(self, runs: int) -> int:
        """How many requests of so many runs each may be under way."""
        if not self._rate:
            return self.least
        held = self._rate * (self._wait_s / runs + self._flow_s)
        return min(max(self.least, round(MOST_TIMES * held)), self.most)

    def length(self, missing: int) -> int:
        """How many runs one request may bring, of so many that are missing: one until the first request has ended."""
        one = self._sample
        run_s = one.flowed_s / one.runs if one is not None and one.runs else self._last_flow_s
        if not run_s:
            return 1
        wait_s = self._wait_s if self._rate else 0.0
        long = max(1, int(max(JOIN_S, JOIN_WAITS * wait_s) / run_s))
        return max(1, min(long, missing // (JOIN_SHARE * self.limit(long))))

    def on_done(self, took_s: float, under_way: int, flow_s: float, runs: int, now: float) -> None:
        """A request has ended well.

        Args:
            took_s: seconds.
            under_way: requests that ran at that moment, this one included.
            flow_s: seconds from its first byte to its end; 0: not known, it counts as if nothing was waited for.
            runs: that it brought.
            now: seconds.
        """
        one = self._sample = self._sample or _Sample(now - took_s)
        flow_s = min(flow_s, took_s) or took_s
        one.requests += 1
        one.runs += runs
        one.waited_s += took_s - flow_s
        one.flowed_s += flow_s
        one.under_way = max(one.under_way, under_way)
        # Ends come in gusts: less time than a request takes would tell a wrong rate.
        whole = (now - one.began) * one.requests >= one.waited_s + one.flowed_s
        if whole and one.requests >= max(self.least, one.under_way):
            self._rate = one.runs / max(now - one.began, MIN_READ_S)
            self._wait_s = min(self._wait_s, one.waited_s / one.requests)
            self._flow_s = min(self._flow_s, one.flowed_s / one.runs)
            self._last_flow_s = one.flowed_s / one.runs
            self._sample = _Sample(now)

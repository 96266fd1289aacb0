"""How much lies between a peer and us: bandwidth times delay, in runs. Pure.

What is asked for must cover it, or the sender waits for our next request: 6 runs of 256 KiB kept
0.46 of a 25 Gbit/s link busy at a round trip of 1 ms, and 0.12 of 1 Gbit/s at 100 ms.
"""


class Way:
    """Bytes under way between one peer and us, by what came within a round trip.

    Measured, not assumed: a short or thin way holds less than a run, and nothing more is asked for
    than without it. On a long fat one what came within a round trip is what was asked for, so the
    depth grows with every one until the link is full.
    """

    __slots__ = ("_bytes", "_came", "_heard_at", "_since", "rtt_s", "runs")

    def __init__(self, rtt_s: float, now: float) -> None:
        """Nothing has come yet.

        Args:
            rtt_s: what a round trip takes at least; 0: not known.
            now: seconds.
        """
        self.rtt_s = rtt_s
        self.runs = 0  # whole runs that it holds: as many more should be asked for
        self._bytes = 0.0  # the same, measured last
        self._came = 0  # bytes since `_since`
        self._since = self._heard_at = now

    def idle_until(self, now: float) -> None:
        """Nothing was asked for until now: that time says nothing, unless the pause was short.

        What is asked for together ends together where the way is long: then a moment without
        anything asked for is the rule.
        """
        if now > self._heard_at + self.rtt_s:
            self._came = 0
            self._since = now

    def carried(self, nbytes: int, now: float) -> None:
        """So many bytes came."""
        self._came += nbytes
        self._heard_at = now
        took_s = now - self._since
        if 0 < self.rtt_s <= took_s:
            self._bytes = self._came * self.rtt_s / took_s
            self._came = 0
            self._since = now

    def measure(self, run_bytes: float, most: int) -> bool:
        """See how many runs of so many bytes it holds, `most` at most; returns whether that changed."""
        before = self.runs
        self.runs = min(most, int(self._bytes / run_bytes)) if run_bytes else 0
        return self.runs != before

"""How often a client may ask: a token bucket for each client and one for all (a leaky bucket as a meter, Turner 1986).

A client that goes a little over its rate is slowed down: it waits a moment. A client that would have to wait longer is
refused and told when to come back.
"""

from typing import NamedTuple

from p2pcache.core.settings import MAX_CLIENTS


class Rate(NamedTuple):
    """A limit of requests."""

    per_s: float  # on average
    burst: float  # at once, after a pause


class RateCounter:
    """One bucket: counts events of one kind against a rate. Events over the rate count too: a flood stays refused."""

    __slots__ = ("_at", "_rate", "tokens")

    def __init__(self, rate: Rate) -> None:
        """Start full."""
        self.tokens = rate.burst
        self._rate = rate
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Seconds from `now` (monotonic) until one more may pass."""
        if self._at is not None:
            self.tokens = min(self._rate.burst, self.tokens + (now - self._at) * self._rate.per_s)
        self._at = now
        return max(0.0, (1 - self.tokens) / self._rate.per_s)

    def allow(self, now: float) -> bool:
        """Count one event; False: the rate is exceeded."""
        allowed = self.wait_s(now) == 0
        self.tokens -= 1
        return allowed


class RateLimit:
    """Buckets of one kind of request.

    Invariants: a bucket holds at most its burst; it goes below zero by at most `patience_s` times its
    rate; `_each` is ordered by last use and has at most `MAX_CLIENTS` entries.
    """

    def __init__(self, each: Rate, everyone: Rate) -> None:
        """All buckets are full.

        Args:
            each: the rate of one client.
            everyone: the rate of all clients together.
        """
        self._rate = each
        self._each: dict[str, RateCounter] = {}
        self._everyone = RateCounter(everyone)

    def take(self, client: str, now: float, *, patience_s: float) -> float:
        """Count one request.

        Args:
            client: its name.
            now: monotonic seconds.
            patience_s: the longest wait; a request that would wait longer is refused.

        Returns:
            Seconds to wait first. More than `patience_s`: the request is refused and not counted.
        """
        bucket = self._each.pop(client, None) or RateCounter(self._rate)
        self._each[client] = bucket
        if len(self._each) > MAX_CLIENTS:
            del self._each[next(iter(self._each))]
        wait = max(bucket.wait_s(now), self._everyone.wait_s(now))
        if wait <= patience_s:
            bucket.tokens -= 1
            self._everyone.tokens -= 1
        return wait

"""Limits and rates of peer connections: how much a peer may cost this node, and for how long."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pcache.core.ratelimit import Rate

BURST_S = 0.05  # worth of a rate that may pass at once: a burst too short to notice
UNLIMITED = 1 << 40  # bytes at a time without a rate: more than any chunk has


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Deadlines (seconds), counts and sizes. docs/protocol.md states those that both sides rely on."""

    handshake_s: float = 10.0  # from connect to WELCOME
    stall_s: float = 10.0  # without a byte inside a DATA frame, either way
    ping_s: float = 4.0  # a quiet connection is asked for a sign of life
    idle_s: float = 10.0  # no byte at all: two PINGs were not answered
    # A request without a byte of DATA ends after `silent_times` the usual time of a request, but not before
    # `silent_s` nor after `request_s`.
    silent_times: float = 8.0
    silent_s: float = 10.0
    request_s: float = 30.0
    # The least rate of a connection with requests, over `stall_s`: too slow for any model, but a neighbour whose
    # disk or process hardly moves may still send that.
    least_bytes_per_s: float = 16384.0
    # A node that sent wrong bytes is not dialled for so long, and one that broke a rule is not let in either.
    ban_s: float = 60.0
    connections: int = 1024  # inbound; 24 neighbours are usual, so this is for floods
    half_open: int = (
        128  # inbound without a handshake; above it the oldest of the most crowded address goes
    )
    # Dials to the addresses that callers named: a swarm of eager newcomers has some dozens.
    dial_backs: Rate = field(default_factory=lambda: Rate(10, 64))
    dial_backs_open: int = (
        64  # connections of ours without a handshake, above which no caller is dialled
    )
    streams: int = 256  # models per connection
    requests: int = 64  # waiting per connection
    frames_per_s: float = 200.0  # control ones, on average; a neighbour sends 50 HAVEs, 100 calls
    frames_burst: float = 1000.0
    congestion: str = ""  # TCP's congestion control; "": the system's
    outbox_bytes: int = 4 << 20  # control bytes that a peer doesn't read: a 1 M run HAVE is 125 KB


class TokenBucket:
    """A byte rate shared by threads: a token bucket that may go into debt.

    `spend` returns how long to wait for the debt.
    """

    def __init__(
        self,
        bytes_per_s: float = 0,
        *,
        burst_bytes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start full.

        Args:
            bytes_per_s: the rate; 0: none, everything passes.
            burst_bytes: bytes that may pass at once after a pause; default 50 ms worth.
            clock: monotonic seconds.
        """
        self.bytes_per_s = bytes_per_s
        self._cap = bytes_per_s
        self._burst = bytes_per_s * BURST_S if burst_bytes is None else burst_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = self._burst
        self._at = clock()

    @property
    def quantum(self) -> int:
        """Bytes to move at a time so that the rate stays smooth: 50 ms worth, 4 KiB to 4 MiB."""
        rate = self.bytes_per_s
        return int(min(max(rate * BURST_S, 4096), 4 << 20)) if rate else UNLIMITED

    def limit(self, bytes_per_s: float) -> None:
        """Set the rate, at most the one at construction; 0: that one."""
        rates = [rate for rate in (self._cap, bytes_per_s) if rate > 0]
        rate = min(rates, default=0.0)
        with self._lock:
            if rate == self.bytes_per_s:
                return
            # A debt keeps its time, not its bytes. At a tenth of the rate it would take ten times as
            # long, and a peer that waits for it would seem dead.
            owed_s = min(0.0, self._tokens) / self.bytes_per_s if self.bytes_per_s else 0.0
            self._burst = rate * BURST_S
            self._tokens = owed_s * rate
            self._at = self._clock()
            self.bytes_per_s = rate

    def spend(self, nbytes: int) -> float:
        """Count bytes that have moved; returns the seconds to wait before the next ones."""
        if not self.bytes_per_s:
            return 0.0
        with self._lock:
            if not self.bytes_per_s:  # lifted by another thread meanwhile
                return 0.0
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.bytes_per_s)
            self._at = now
            self._tokens -= nbytes
            return max(0.0, -self._tokens / self.bytes_per_s)

    def take(self, nbytes: int) -> None:
        """Count bytes and sleep until they are paid for (worker threads only)."""
        delay = self.spend(nbytes)
        if delay > 0:
            time.sleep(delay)


class BothRates:
    """Two rates that both hold."""

    def __init__(self, one: TokenBucket, other: TokenBucket) -> None:
        self._buckets = (one, other)

    def take(self, nbytes: int) -> None:
        """Count bytes against both and sleep until both are paid for (worker threads only)."""
        delay = max(bucket.spend(nbytes) for bucket in self._buckets)
        if delay > 0:
            time.sleep(delay)

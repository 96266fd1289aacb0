"""Limits and rates of peer connections: what a peer may cost us, and for how long."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST_S = 0.05  # of a rate: what may pass at once, too short for anybody to notice
UNLIMITED = 1 << 40  # bytes at a time where there is no rate: more than any chunk has


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Deadlines (seconds), counts and sizes. docs/protocol.md states those that both sides rely on."""

    handshake_s: float = 10.0  # from connect to WELCOME
    stall_s: float = 10.0  # without a byte inside a DATA frame, either way
    ping_s: float = 4.0  # a quiet connection is asked for a sign of life
    idle_s: float = 10.0  # no byte at all: two PINGs were not answered
    # A request without a byte of DATA: so many times what requests to anybody took of late, within these limits.
    silent_times: float = 8.0
    silent_s: float = 10.0
    request_s: float = 30.0
    # What a connection with requests brings in `stall_s`, at least: 128 kbit/s is no way to fetch a model, but what
    # a neighbour whose disk or process hardly moves may still send.
    least_bytes_per_s: float = 16384.0
    ban_s: float = 60.0  # who broke a rule is neither dialled nor let in for so long
    connections: int = 1024  # inbound; 24 neighbours are usual, so this is for floods
    half_open: int = (
        128  # inbound without a handshake; above it the oldest of the most crowded address goes
    )
    streams: int = 256  # models per connection
    requests: int = 64  # waiting per connection
    frames_per_s: float = 200.0  # control ones, on average; a neighbour sends 50 HAVEs, 100 calls
    frames_burst: float = 1000.0
    outbox_bytes: int = 4 << 20  # control bytes that a peer doesn't read: a 1 M run HAVE is 125 KB


class TokenBucket:
    """A byte rate shared by threads. Spending may go into debt; the answer is how long to wait."""

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
            burst_bytes: what may pass at once after a pause; default 50 ms worth.
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
        """Go on at another rate, at most the one that it was made with; 0: at that one."""
        rates = [rate for rate in (self._cap, bytes_per_s) if rate > 0]
        rate = min(rates, default=0.0)
        with self._lock:
            if rate == self.bytes_per_s:
                return
            # A debt keeps its time, not its bytes: at a tenth of the rate it would take ten times as
            # long, and whoever waits for it would be taken for dead.
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
            if not self.bytes_per_s:  # lifted since we looked
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


class Both:
    """Two rates that hold at once."""

    def __init__(self, one: TokenBucket, other: TokenBucket) -> None:
        self._buckets = (one, other)

    def take(self, nbytes: int) -> None:
        """Count bytes and sleep until both have them paid for (worker threads only)."""
        delay = max(bucket.spend(nbytes) for bucket in self._buckets)
        if delay > 0:
            time.sleep(delay)


class FrameRate:
    """Counts control frames against a rate with bursts. Used by one thread at a time."""

    __slots__ = ("_at", "_burst", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float) -> None:
        """Start full."""
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._at = time.monotonic()

    def allow(self) -> bool:
        """Count one frame; False once the peer is over its rate."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s) - 1
        self._at = now
        return self._tokens >= 0

"""One neighbour: what it has, how quick it is, and how much the link to it holds."""

from p2pcache.core import backoff
from p2pcache.core.peers.settings import PAUSE_MAX_S, PAUSE_S
from p2pcache.core.upload.settings import FULL
from p2pcache.ids import NodeId, RunIndex, RunSet


class BandwidthDelay:
    """How many runs are under way between a neighbour and us when its link is full: bandwidth times round trip.

    As many requests more must be in flight, or the neighbour waits for our next one. The product is measured by what
    came within one round trip. A short or thin link holds less than a run. On a long fat link what came is at first
    what was asked for, so the number grows with each round trip until the link is full (RFC 7323 calls it a long fat
    network).
    """

    __slots__ = ("_bytes", "_came", "_heard_at", "_since", "rtt_s", "runs")

    def __init__(self, rtt_s: float, now: float) -> None:
        """Nothing has come yet; `rtt_s`: the shortest round trip; 0: not known, and then the product stays 0."""
        self.rtt_s = rtt_s
        self.runs = 0  # whole runs that the link holds
        self._bytes = 0.0  # bytes that it holds, as measured last
        self._came = 0  # bytes since `_since`
        self._since = self._heard_at = now

    def on_first_request(self, now: float) -> None:
        """A request goes out while none was in flight: the time before it says nothing.

        A pause shorter than a round trip counts. Requests that go out together end together on a long link, and a
        moment without any is usual there.
        """
        if now > self._heard_at + self.rtt_s:
            self._came = 0
            self._since = now

    def on_bytes(self, nbytes: int, now: float) -> None:
        """Bytes came."""
        self._came += nbytes
        self._heard_at = now
        took_s = now - self._since
        if 0 < self.rtt_s <= took_s:
            self._bytes = self._came * self.rtt_s / took_s
            self._came = 0
            self._since = now

    def measure(self, run_bytes: float, most: int) -> bool:
        """Set `runs`, `most` at most, from what came and from a run's usual length; returns whether it changed."""
        before = self.runs
        self.runs = min(most, int(self._bytes / run_bytes)) if run_bytes else 0
        return self.runs != before


class Peer:
    """One connected neighbour that we can ask for runs."""

    __slots__ = ("bdp", "delivers", "distance", "full_until", "have", "idle_refusals", "in_flight", "load", "node",
                 "owed", "owed_s", "owes_since", "proved_bytes", "refused_since", "rest_until",
                 "said_idle", "stalls")  # fmt: skip

    def __init__(
        self, node: NodeId, have: RunSet, now: float, distance: int = 0, rtt_s: float = 0.0
    ) -> None:
        """A neighbour connected; `have`: as it says."""
        self.node = node
        self.distance = distance
        self.have = have
        self.load = 0  # as it last said; `FULL` or more: it has no free slot
        self.in_flight = 0  # our requests to it that haven't ended
        self.owed: RunSet = 0  # their runs
        self.rest_until = 0.0  # after BUSY or a stall it isn't asked before this time
        # It has no free slot, and isn't asked before this time unless we lack requests.
        self.full_until = 0.0
        self.owes_since = now  # when our last request ended, or when it began to owe us something
        self.proved_bytes = 0  # that came from it
        self.owed_s = 0.0  # seconds in which it owed us something
        self.delivers = True  # False: what it claims to have doesn't count until it sends a run
        self.stalls = 0  # stalled requests in a row
        # When it first said BUSY since it last served anybody, as far as we know; 0: it hasn't.
        self.refused_since = 0.0
        self.idle_refusals = 0  # BUSYs since then, each after it had said that it serves nobody
        self.said_idle = False  # it has said so since its last BUSY
        self.bdp = BandwidthDelay(rtt_s, now)

    @property
    def extra_requests(self) -> int:
        """Requests beyond the usual ones that keep its link full: what the link holds, and the next one."""
        return self.bdp.runs + 1 if self.bdp.runs else 0

    @property
    def free_at(self) -> float:
        """From when on it may be asked, in seconds, as far as we know."""
        return max(self.rest_until, self.full_until)

    @property
    def is_idle(self) -> bool:
        """Whether it serves nobody, as far as we know, and nothing is said against it."""
        return self.delivers and not (self.load or self.in_flight or self.refused_since)

    def on_request(self, run: RunIndex, now: float) -> None:
        """A request for a run goes out to it."""
        if not self.in_flight:
            self.owes_since = now
            self.bdp.on_first_request(now)
        self.in_flight += 1
        self.owed |= 1 << run

    def on_request_ended(self, run: RunIndex, nbytes: int, now: float) -> None:
        """The request for a run ended and brought so many proved bytes."""
        self.in_flight -= 1
        self.owed &= ~(1 << run)
        self.proved_bytes += nbytes
        self.owed_s += now - self.owes_since
        self.owes_since = now
        if nbytes:
            self.bdp.on_bytes(nbytes, now)
            self.stalls = 0
            self.refused_since = self.rest_until = self.full_until = 0.0  # its slot is ours

    def on_load(self, load: int, now: float, rest_s: float) -> None:
        """It says its load; if it has no free slot it isn't asked for `rest_s`."""
        self.load = load
        self.said_idle = not load
        if load:
            self.idle_refusals = 0
        # It has places for requests across a boundary that no others take.
        self.full_until = now + rest_s if load >= FULL and not self.distance else 0.0

    def on_busy(self, now: float, rest_s: float) -> None:
        """It answered BUSY: it isn't asked for `rest_s`, unless it calls."""
        self.rest_until = now + rest_s
        self.idle_refusals = self.idle_refusals + self.said_idle if self.refused_since else 0
        self.said_idle = False
        self.refused_since = self.refused_since or now

    def on_recall(self, load: int, now: float) -> bool:
        """It says that it serves, and by its load whether it has room; returns whether a rest after BUSY ends."""
        if not self.refused_since or self.stalls:
            return False
        if load >= FULL:  # it serves others, so its refusals were no sign of a hang
            self.refused_since, self.idle_refusals = now, 0
            return False
        self.refused_since = self.rest_until = self.full_until = 0.0
        return True

    def on_stall(self, now: float) -> None:
        """It owed us bytes and sent none for too long: let it rest, longer with each stall in a row."""
        if now < self.rest_until and self.stalls:
            return  # several requests in flight stall in one silence
        self.rest_until = now + backoff.pause_s(PAUSE_S, PAUSE_MAX_S, self.stalls)
        self.stalls += 1

    def rate(self, now: float) -> float | None:
        """Bytes a second while it owes us something, for people; None: it never did."""
        seconds = self.owed_s + (now - self.owes_since if self.in_flight else 0.0)
        return self.proved_bytes / seconds if seconds > 0 else None

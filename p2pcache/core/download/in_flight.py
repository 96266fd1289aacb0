"""Requests to neighbours, as the neighbours' side keeps them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.peers.peer_book import Peer
from p2pcache.core.swarm.run_states import RunBook
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.errors import LocalProtocolError


@dataclass(slots=True)
class Asked:
    """One `Request` that hasn't ended."""

    peer: Peer
    run: int
    started: float
    # When it was sent; or if the sender's last run had to end first, that time less what an answer takes. Inf: it
    # waits for that end.
    since: float
    live: bool = True  # False: cancelled or its peer is gone, only its end is awaited
    followed: bool = False  # the sender was asked for the next one already
    twin: bool = False  # a second request for the same run is in flight
    probe: bool = False  # the peer delivers nothing so far: the run may be asked of others, or read, meanwhile


class Requests:
    """Those that haven't ended, by number, in the order in which they were sent.

    Invariants (`check`): `mine.asked` is exactly the runs of live ones that aren't probes; a live one's peer is
    connected, and `Peer.asked` is the number of live ones to it; one of them at most waits for the end of another.
    """

    def __init__(self, run_bytes: Sequence[int], mine: RunBook) -> None:
        """None yet.

        Args:
            run_bytes: length of each run in bytes.
            mine: what we have; `asked` is kept there.
        """
        self._run_bytes = run_bytes
        self._mine = mine
        self._next = 1
        self.by_number: dict[int, Asked] = {}
        self.flowing = 0  # live ones, but for probes and those that wait for another's end
        self.probes = 0  # live ones
        self.live_bytes = 0

    def sent(
        self, peer: Peer, run: int, now: float, *, behind: bool = False, twin: bool = False
    ) -> int:
        """One goes out; returns its number.

        Args:
            peer: to whom.
            run: for which run.
            now: seconds.
            behind: it waits there for the end of another.
            twin: of another for the same run.
        """
        number, self._next = self._next, self._next + 1
        probe = not peer.delivers
        self.by_number[number] = Asked(
            peer, run, now, math.inf if behind else now, twin=twin, probe=probe
        )
        self._mine.asked |= 0 if probe else 1 << run
        self.flowing += not behind and not probe
        self.probes += probe
        self.live_bytes += self._run_bytes[run]
        return number

    def doubt(self, peer: Peer) -> None:
        """A peer doesn't deliver: what it was asked for is waited for no longer, if it still may come."""
        for asked in self.by_number.values():
            if asked.live and asked.peer is peer and not asked.probe:
                asked.probe = True
                self.probes += 1
                self.flowing -= asked.since < math.inf
        live = (one for one in self.by_number.values() if one.live and not one.probe)
        self._mine.asked = bitset.of(one.run for one in live)

    def ended(self, number: int) -> Asked:
        """This one is over; if it is live, `release` it.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        asked = self.by_number.pop(number, None)
        if asked is None:
            raise LocalProtocolError(f"request {number} ended, but isn't in flight")
        return asked

    def release(self, asked: Asked, now: float, trip_s: float) -> None:
        """Take one out of the live ones; its peer's count is the caller's business.

        Args:
            asked: which.
            now: seconds.
            trip_s: what an answer takes: who waited for its end began so long ago.
        """
        asked.live = False
        self.flowing -= asked.since < math.inf and not asked.probe
        self.probes -= asked.probe
        self.live_bytes -= self._run_bytes[asked.run]
        alone = True
        for other in self.by_number.values():
            if not other.live:
                continue
            if other.run == asked.run:
                other.twin = False  # it is alone now and may get a new twin
                alone = alone and other.probe
            if other.peer is asked.peer and other.since == math.inf:
                other.since = now - trip_s
                self.flowing += not other.probe
        if alone:
            self._mine.asked &= ~(1 << asked.run)

    def views(self, now: float) -> Iterator[InFlight]:
        """The live ones, the oldest first, for people."""
        for asked in self.by_number.values():
            if asked.live:
                yield InFlight(asked.run, now - asked.started, asked.peer.node)

    def check(self, peers: Mapping[int, Peer]) -> None:
        """Assert the invariants."""
        live = [a for a in self.by_number.values() if a.live]
        assert sum(a.since < math.inf and not a.probe for a in live) == self.flowing
        assert sum(a.probe for a in live) == self.probes
        assert sum(self._run_bytes[a.run] for a in live) == self.live_bytes
        assert bitset.of(a.run for a in live if not a.probe) == self._mine.asked
        for asked in live:
            assert peers.get(asked.peer.node) is asked.peer
        for peer in peers.values():
            assert peer.asked == sum(a.peer is peer for a in live)
            behind = sum(a.peer is peer and a.since == math.inf for a in live)
            assert behind <= min(1, peer.asked - 1) or not peer.asked

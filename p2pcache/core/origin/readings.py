"""The reads of storage of one node that haven't ended.

A *request* brings one run, or several consecutive ones where nobody else could read a part of them, each a `Fetch`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.errors import LocalProtocolError
from p2pcache.ids import RunIndex, RunSet


@dataclass(slots=True)
class Reading:
    """One `Fetch` that hasn't ended."""

    run: RunIndex
    started: float  # when its request began
    request: int  # number of the first `Fetch` of its request
    place: int  # of the run in the request, from 0
    live: bool = True  # False: cancelled, only its end is awaited


class Readings:
    """All of them, by number. Invariant (`check`): `_left` counts those of each request that hasn't ended."""

    def __init__(self) -> None:
        """None is in flight."""
        self._by_number: dict[int, Reading] = {}
        self._left: dict[int, int] = {}  # number of a request's first `Fetch` -> its readings
        self._next = 1

    @property
    def requests(self) -> int:
        """Requests that are under way."""
        return len(self._left)

    @property
    def live(self) -> Iterator[Reading]:
        """Those that weren't cancelled, the oldest first."""
        return (reading for reading in self._by_number.values() if reading.live)

    def begin_reading(self, run: RunIndex, place: int, now: float) -> int:
        """A run is read from now on; returns the number of its `Fetch`. One request begins them in turn."""
        number = self._next
        self._next += 1
        request = number - place
        self._by_number[number] = Reading(run, now, request, place)
        self._left[request] = self._left.get(request, 0) + 1
        return number

    def end_reading(self, number: int) -> tuple[Reading, bool]:
        """A `Fetch` ended; returns it, and whether its request has ended with it.

        Raises:
            LocalProtocolError: no such fetch is in flight.
        """
        reading = self._by_number.pop(number, None)
        if reading is None:
            raise LocalProtocolError(f"fetch {number} ended, but isn't in flight")
        self._left[reading.request] -= 1
        done = not self._left[reading.request]
        if done:
            del self._left[reading.request]
        return reading, done

    def cancel_runs(self, runs: RunSet) -> list[int]:
        """Cancel the live readings of these runs; returns their numbers."""
        found = [n for n, r in self._by_number.items() if r.live and runs >> r.run & 1]
        for number in found:
            self._by_number[number].live = False
        return found

    def views(self, now: float) -> Iterator[InFlight]:
        """The live reads, the oldest first, for people."""
        return (InFlight(reading.run, now - reading.started) for reading in self.live)

    def check(self, fetching: RunSet, most: int) -> None:
        """Assert that exactly the runs of `fetching` are read, in `most` requests at most."""
        live = list(self.live)
        runs = [r.run for r in live]
        assert len(runs) == len(set(runs)), "a run is read twice at once"
        assert bitset.of(runs) == fetching
        assert len({r.request for r in live}) <= most
        assert sum(self._left.values()) == len(self._by_number)


def joined(runs: Iterable[RunIndex], length: int, requests: int) -> Iterator[tuple[RunIndex, int]]:
    """The runs, in order, of so many requests of `length` runs at most, each with its place in its request.

    The requests have different lengths. Equal ones would end together, and then nothing flows while all wait.
    """
    lengths = [-(-length * nth // requests) for nth in range(requests, 0, -1)]
    previous, place, left = -1, 0, 0
    for run in runs:
        if left and run == previous + 1:
            place += 1
        elif lengths:
            place, left = 0, lengths.pop()
        else:
            return
        left -= 1
        previous = run
        yield run, place

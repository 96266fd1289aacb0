"""A swarm that has lost its tracker: who reads which run from the origin, and whom to dial.

The owner of a run is the first live member in rendezvous order. Others wait for it, dial it if
they can't see it, and pass it over when it can't be reached, lied, or let everybody wait for long:
then all that it owns goes to the next in order. Bound: one origin copy per connected part of the
swarm, also when storage falls silent: that looks as if all owners were idle, and if each passed over
all the others, everybody would read everything afterwards.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from p2pcache.core import bitset, rendezvous
from p2pcache.core.settings import SwarmSettings

# Runs without a holder that owners read at a time. A count, as leases are: so far from the first one on, one that
# was late stopped the rest, then all began at once (50 nodes, 512 runs, tracker lost at 30 %: 0.854 of the bound
# with 48 from the first on; by count 0.872 with 20, 0.889 with 28, 0.895 with 40, 0.878 with 64).
LOOK_AHEAD = 40
LEAST_AHEAD = 24  # of them, however many others may be left alone by their owners
LEASED = 16  # runs that a tracker which is lost has granted at that moment, where storage is near
_PATIENT = 2.0  # times what reads at once take: the uplink isn't shared evenly
# After one owner was passed over and something came: of the usual patience, for the other ones that are waited for.
_KNOWN = 0.25
_DIALS = 4  # dials in flight: an owner hunt must not look like a port scan


class Plan(NamedTuple):
    """What to do now about runs that no neighbour has."""

    read: list[int]  # we may read these, in order
    dial: list[int]  # members to connect to
    wake_at: float  # look again then


def patience(settings: SwarmSettings, reads: int, tempo_s: float) -> float:
    """How long an owner may let everybody wait, in seconds.

    What the owners read at once shares the origin's uplink and ends together, and meanwhile nothing comes from
    anybody: where that takes longer than the usual patience all would be passed over, everybody would read
    everything, and the slower it became the more (12 nodes, 2 MB/s for runs of 1 MiB, tracker lost at 30 %: 4.0
    copies left the origin).

    Args:
        settings: the usual patience.
        reads: how many runs may be read at once now, by all.
        tempo_s: from one new run to the next, as it was of late; 0: not known.
    """
    return max(settings.owner_patience_s, _PATIENT * reads * tempo_s)


class Owners:
    """The member list as last told, and which members are no good as owners.

    Invariants: members passed over are never owners; a node is in `dialling` from the Dial to its end;
    `_live` is None or what `live` would come to.
    """

    def __init__(self, node: int, settings: SwarmSettings) -> None:
        self._node = node
        self._settings = settings
        self._told: tuple[int, ...] = ()  # the list as the tracker last gave it
        self._connected: set[int] = set()  # neighbours: members too, known or not
        # Made when it is asked for, and that is without a tracker only: 10,000 sorted copies of a list
        # of 10,000 cost a simulated storm more than all its chunks.
        self._live: tuple[int, ...] | None = None
        self._passed: set[int] = set()  # dead, lying or idle
        self._idle: set[int] = set()  # of them those that may only look so, storage being silent
        self._back: set[int] = set()  # of those whom it turned out so: once each
        self._tried_at = -math.inf  # when an idle owner was last passed over
        self._left: set[int] = set()  # were neighbours, and their connection broke
        self._cache: dict[int, int | None] = {}  # run -> owner among `_live`
        self._since: dict[int, float] = {}  # run -> since when we wait for its owner
        self.dialling: set[int] = set()

    def told(self, nodes: Iterable[int]) -> None:
        """The swarm's full member list; whom we passed over gets another chance."""
        self._told = tuple(nodes)
        for some in (self._passed, self._idle, self._back):
            some.clear()
        self._relist()

    def joined(self, node: int) -> None:
        """A member is connected. It may be one that the lost tracker had no time to tell us of."""
        self.dialling.discard(node)
        self._left.discard(node)
        self._connected.add(node)
        self._passed.discard(node)
        if self._live is not None and node not in self._live:
            self._relist()

    def left(self, node: int) -> None:
        """A neighbour's connection broke: dial it at once when it matters."""
        self._left.add(node)
        self._connected.discard(node)
        if self._live is not None and node not in self._told:
            self._relist()

    def failed(self, node: int) -> None:
        """A dial failed, or it sent us wrong bytes: its runs go to the next in order."""
        self.dialling.discard(node)
        self._idle.discard(node)  # whatever it brings
        self._pass_over({node})

    def brought(self, node: int, runs: int) -> None:
        """A neighbour has runs (bits) that nobody had: if it should read one of them it isn't idle."""
        if node not in self._idle:
            return
        self._passed.discard(node)
        self._relist()
        if any(self._owner(run) == node for run in bitset.members(runs)):
            self._idle.discard(node)
            self._back.add(node)
        else:
            self._pass_over({node})

    @property
    def told_of(self) -> tuple[int, ...]:
        """The member list as the tracker last gave it."""
        return self._told

    @property
    def share(self) -> int:
        """How many live members read from the origin at the same time as we do."""
        return len(self.live)

    @property
    def live(self) -> tuple[int, ...]:
        """Members that aren't passed over, ascending."""
        if self._live is None:
            known = {*self._told, *self._connected} if self._told else set()
            self._live = tuple(sorted(known - self._passed))
        return self._live

    def plan(
        self, orphans: Sequence[int], neighbours: Collection[int], quiet_s: float, now: float,
        patience_s: float,
    ) -> Plan:  # fmt: skip
        """Decide about runs without a holder.

        Args:
            orphans: run indices in order.
            neighbours: nodes connected to us.
            quiet_s: for how long nothing has come our way from anybody.
            now: seconds.
            patience_s: how long an owner may let everybody wait.
        """
        read: list[int] = []
        dial: list[int] = []
        since: dict[int, float] = {}
        wake_at = math.inf
        self._overtake(orphans, quiet_s, now, patience_s)
        for run in orphans:
            owner = self._owner(run)
            if owner == self._node:
                read.append(run)
                continue
            if owner is None:
                continue
            since[run] = self._since.get(run, now)
            if owner not in neighbours and owner not in self.dialling:
                due = now if owner in self._left else since[run] + self._settings.stuck_after_s
                if due > now:
                    wake_at = min(wake_at, due)
                elif len(self.dialling) < _DIALS:
                    self.dialling.add(owner)
                    dial.append(owner)
        self._since = since
        if since:
            wake_at = min(wake_at, now + _KNOWN * patience_s)
        return Plan(read, dial, wake_at)

    def _overtake(
        self, orphans: Sequence[int], quiet_s: float, now: float, patience_s: float
    ) -> None:
        """Pass over whom everybody waits for: one, to see whether anything comes from storage; then all others."""
        came = self._tried_at < now - quiet_s <= self._tried_at + patience_s
        silent_s = quiet_s if came else min(quiet_s, now - self._tried_at)
        if silent_s < patience_s * (_KNOWN if came else 1):
            return
        waited = (run for run in orphans if now >= self._since.get(run, now) + patience_s)
        idle = dict.fromkeys(
            owner for owner in map(self._owner, waited) if owner not in (self._node, None)
        )
        if idle:
            self._tried_at = now
            these = list(idle) if came else list(idle)[:1]
            self._pass_over(these)
            self._idle.update(node for node in these if node is not None and node not in self._back)

    def _pass_over(self, nodes: Collection[int | None]) -> None:
        fresh = {node for node in self.live if node in nodes}
        if fresh:
            self._passed |= fresh
            for run in [r for r, owner in self._cache.items() if owner in fresh]:
                self._since.pop(run, None)  # the next owner gets its own time
            self._relist()

    def _owner(self, run: int) -> int | None:
        if run not in self._cache:
            self._cache[run] = rendezvous.owner(run, self.live)
        return self._cache[run]

    def _relist(self) -> None:
        self._live = None
        self._cache.clear()

"""A swarm that has lost its tracker: which node reads which run from the origin, and which members to dial.

The owner of a run is the first live member in rendezvous order (Thaler and Ravishankar 1998). The other nodes wait for
it, and dial it if they aren't connected. They pass it over if it can't be reached, sent wrong bytes, or brought
nothing for a long time: then the next member in order owns all of its runs.

Bound: one copy from the origin for each connected part of the swarm. It also holds when storage falls silent. Then all
owners seem idle, and if each node passed over all others, each would read everything afterwards.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from p2pcache.core import bitset, rendezvous
from p2pcache.core.origin.settings import (
    LEAST_PATIENCE_S,
    MAX_OWNER_DIALS,
    PATIENCE_RATIO,
    SHORTER_PATIENCE,
)
from p2pcache.core.settings import SwarmSettings
from p2pcache.ids import NodeId, RunIndex, RunSet


class Plan(NamedTuple):
    """What to do now about runs that no neighbour has."""

    read: list[RunIndex]  # this node may read these, in order
    dial: list[NodeId]  # members to connect to
    wake_at: float  # when to plan again, in seconds


def patience(reads: int, pace_s: float, least_s: float = LEAST_PATIENCE_S) -> float:
    """How long an owner may bring nothing before it is passed over, in seconds.

    The runs that owners read at once share the origin's uplink and end together, and until then nothing comes from
    anybody. With less patience all owners would be passed over and each node would read everything (docs/lab/0027).

    Args:
        reads: runs that all nodes together may be reading now.
        pace_s: seconds from one new run to the next, of late.
        least_s: more where that isn't known yet.
    """
    return max(least_s, PATIENCE_RATIO * reads * pace_s)


class OriginOwners:
    """The member list as the tracker last gave it, and the members that are passed over.

    Invariants: a member that is passed over owns nothing; a node is in `dialling` from the Dial to its end;
    `_live` is None or the value of `live`.
    """

    def __init__(self, node: NodeId, settings: SwarmSettings) -> None:
        """No member is known yet.

        Args:
            node: this node.
            settings: when a member that isn't connected is dialled.
        """
        self._node = node
        self._settings = settings
        self._members: tuple[NodeId, ...] = ()  # as the tracker last gave them
        self._connected: set[NodeId] = set()  # neighbours: members too, listed or not
        # Computed when it is asked for, which happens without a tracker only: each node of a large simulated storm
        # would sort its list again and again.
        self._live: tuple[NodeId, ...] | None = None
        self._passed: set[NodeId] = set()  # passed over: dead, lying or idle
        self._idle: set[NodeId] = (
            set()
        )  # passed over because they seemed idle; storage may have been silent
        self._pardoned: set[NodeId] = set()  # seemed idle, then brought a run: pardoned once
        self._tried_at = -math.inf  # when an idle owner was last passed over
        self._left: set[NodeId] = set()  # former neighbours whose connection broke
        self._owners: dict[RunIndex, NodeId | None] = {}  # cache of the owners among `_live`
        self._since: dict[RunIndex, float] = {}  # since when we wait for a run's owner
        self.dialling: set[NodeId] = set()

    def on_members(self, nodes: Iterable[NodeId]) -> None:
        """The tracker gave the full member list. Members that were passed over get another chance."""
        self._members = tuple(nodes)
        for some in (self._passed, self._idle, self._pardoned):
            some.clear()
        self._relist()

    def on_peer_joined(self, node: NodeId) -> None:
        """A member is connected. It may have joined after the lost tracker's last list."""
        self.dialling.discard(node)
        self._left.discard(node)
        self._connected.add(node)
        self._passed.discard(node)
        if self._live is not None and node not in self._live:
            self._relist()

    def on_peer_left(self, node: NodeId) -> None:
        """A neighbour's connection broke. It is dialled without delay when one of its runs is needed."""
        self._left.add(node)
        self._connected.discard(node)
        if self._live is not None and node not in self._members:
            self._relist()

    def on_peer_failed(self, node: NodeId) -> None:
        """A dial failed, or the node sent wrong bytes: the next in order owns its runs."""
        self.dialling.discard(node)
        self._idle.discard(node)  # it isn't pardoned, whatever it brings
        self._pass_over({node})

    def on_new_runs(self, node: NodeId, runs: RunSet) -> None:
        """A neighbour has runs that nobody had. If it owns one of them, it isn't idle."""
        if node not in self._idle:
            return
        self._passed.discard(node)
        self._relist()
        if any(self._owner(run) == node for run in bitset.members(runs)):
            self._idle.discard(node)
            self._pardoned.add(node)
        else:
            self._pass_over({node})

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The member list as the tracker last gave it."""
        return self._members

    @property
    def share(self) -> int:
        """How many live members read from the origin at the same time as this node."""
        return len(self.live)

    @property
    def live(self) -> tuple[NodeId, ...]:
        """Members that aren't passed over, ascending."""
        if self._live is None:
            known = {*self._members, *self._connected} if self._members else set()
            self._live = tuple(sorted(known - self._passed))
        return self._live

    def plan(
        self, orphans: Sequence[RunIndex], neighbours: Collection[NodeId], quiet_s: float, now: float,
        patience_s: float,
    ) -> Plan:  # fmt: skip
        """Decide about runs without a holder.

        Args:
            orphans: these runs, in the order in which they are needed.
            neighbours: nodes that are connected.
            quiet_s: for how long no new run has come to this node or its neighbours.
            now: seconds.
            patience_s: how long an owner may bring nothing.
        """
        read: list[RunIndex] = []
        dial: list[NodeId] = []
        since: dict[RunIndex, float] = {}
        wake_at = math.inf
        self._pass_over_idle(orphans, quiet_s, now, patience_s)
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
                elif len(self.dialling) < MAX_OWNER_DIALS:
                    self.dialling.add(owner)
                    dial.append(owner)
        self._since = since
        if since:
            wake_at = min(wake_at, now + SHORTER_PATIENCE * patience_s)
        return Plan(read, dial, wake_at)

    def _pass_over_idle(
        self, orphans: Sequence[RunIndex], quiet_s: float, now: float, patience_s: float
    ) -> None:
        """Skip owners that were silent for `patience_s`.

        At first one is skipped, to tell an idle owner from silent storage. If storage then delivers, all other silent
        ones are skipped.
        """
        came = self._tried_at < now - quiet_s <= self._tried_at + patience_s
        silent_s = quiet_s if came else min(quiet_s, now - self._tried_at)
        if silent_s < patience_s * (SHORTER_PATIENCE if came else 1):
            return
        waited = (run for run in orphans if now >= self._since.get(run, now) + patience_s)
        idle = dict.fromkeys(
            owner for owner in map(self._owner, waited) if owner not in (self._node, None)
        )
        if idle:
            self._tried_at = now
            these = list(idle) if came else list(idle)[:1]
            self._pass_over(these)
            self._idle.update(
                node for node in these if node is not None and node not in self._pardoned
            )

    def _pass_over(self, nodes: Collection[NodeId | None]) -> None:
        fresh = {node for node in self.live if node in nodes}
        if fresh:
            self._passed |= fresh
            for run in [r for r, owner in self._owners.items() if owner in fresh]:
                self._since.pop(run, None)  # the next owner gets its own time
            self._relist()

    def _owner(self, run: RunIndex) -> NodeId | None:
        if run not in self._owners:
            self._owners[run] = rendezvous.owner(run, self.live)
        return self._owners[run]

    def _relist(self) -> None:
        self._live = None
        self._owners.clear()

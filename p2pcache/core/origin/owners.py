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
    MAX_OWNER_DIALS,
    SHORTER_PATIENCE,
)
from p2pcache.core.swarm.commands import Dial
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId, RunIndex, RunSet


class Plan(NamedTuple):
    """What to do now about runs that no neighbour has."""

    read: list[RunIndex]  # this node may read these, in order
    dial: list[Dial]  # to members that should read others
    wake_at: float  # when to plan again, in seconds


class OriginOwners:
    """The member list as the tracker last gave it, and the members that are passed over.

    Invariants: a member that is passed over owns nothing; `_live` is None or the value of `live`.
    """

    def __init__(self, context: SwarmContext) -> None:
        """No member is known yet."""
        self._node = context.node
        self._book = context.book  # neighbours are members too, listed or not
        self._settings = context.settings
        self.members: tuple[NodeId, ...] = ()  # as the tracker last gave them
        # Computed when it is asked for, which happens without a tracker only: each node of a large simulated storm
        # would sort its list again and again.
        self._live: tuple[NodeId, ...] | None = None
        self._passed: set[NodeId] = set()  # passed over: dead, lying or idle
        # Passed over because they seemed idle; storage may have been silent.
        self._idle: set[NodeId] = set()
        self._pardoned: set[NodeId] = set()  # seemed idle, then brought a run: pardoned once
        self._tried_at = -math.inf  # when an idle owner was last passed over
        self._dialled: set[NodeId] = set()  # owners, at any time
        self._left: set[NodeId] = set()  # former neighbours whose connection broke
        self._owners: dict[RunIndex, NodeId | None] = {}  # cache of the owners among `_live`
        self._since: dict[RunIndex, float] = {}  # since when we wait for a run's owner

    def on_members(self, nodes: Iterable[NodeId]) -> None:
        """The tracker gave the full member list. Members that were passed over get another chance."""
        self.members = tuple(nodes)
        for some in (self._passed, self._idle, self._pardoned):
            some.clear()
        self._relist()

    def on_peer_joined(self, node: NodeId) -> None:
        """A member is connected. It may have joined after the lost tracker's last list."""
        self._left.discard(node)
        self._passed.discard(node)
        if self._live is not None and node not in self._live:
            self._relist()

    def on_peer_left(self, node: NodeId) -> None:
        """A neighbour's connection broke. It is dialled without delay when one of its runs is needed."""
        self._left.add(node)
        if self._live is not None and node not in self.members:
            self._relist()

    def on_peer_failed(self, node: NodeId) -> None:
        """A dial failed, or the node sent wrong bytes: the next in order owns its runs."""
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
    def live(self) -> tuple[NodeId, ...]:
        """Members that aren't passed over, ascending; with this node they read the origin at the same time."""
        if self._live is None:
            known = {*self.members, *self._book.peers} if self.members else set()
            self._live = tuple(sorted(known - self._passed))
        return self._live

    def plan(
        self, orphans: Sequence[RunIndex], quiet_s: float, now: float, patience_s: float,
        *, first: bool = False,
    ) -> Plan:  # fmt: skip
        """Decide about runs without a holder.

        Args:
            orphans: these runs, in the order in which they are needed.
            quiet_s: for how long no new run has come to this node or its neighbours.
            now: seconds.
            patience_s: how long an owner may bring nothing.
            first: this node reads the first of them if its owner hasn't said that it takes part.
        """
        read: list[RunIndex] = []
        dial: list[Dial] = []
        since: dict[RunIndex, float] = {}
        wake_at = math.inf
        self._pass_over_idle(orphans, quiet_s, now, patience_s)
        for run in orphans:
            owner = self._owner(run)
            if owner == self._node or (first and owner not in self._book.peers):
                read.append(run)
                first = False
                continue
            first = False
            if owner is None:
                continue
            since[run] = self._since.get(run, now)
            if owner not in self._book.peers and owner not in self._book.dialling:
                due = now if owner in self._left else since[run] + self._settings.stuck_after_s
                if due > now:
                    wake_at = min(wake_at, due)
                elif len(self._dialled & self._book.dialling) < MAX_OWNER_DIALS:
                    dial += self._book.dials([owner])
                    self._dialled.add(owner)
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

"""A swarm that has lost its tracker: which node reads which run from the origin, and which members to dial.

The owner of a run is the first live member in rendezvous order (Thaler and Ravishankar 1998). The other nodes wait for
it, and dial it if they aren't connected. They pass it over if it can't be reached, sent wrong bytes, or brought
nothing for a long time: then the next member in order owns all of its runs.

Bound: one copy from the origin for each connected part of the swarm, also when storage falls silent and all owners seem
idle.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from p2pcache.core import bitset, rendezvous
from p2pcache.core.origin.settings import DIAL_AFTER, MAX_DIALS, SHORTER_PATIENCE
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
        self._reachable = False  # a member has dialled us
        self._failed: set[NodeId] = set()  # can't be reached, or sent wrong bytes
        # Brought nothing for a long time; storage may have been silent.
        self._idle: set[NodeId] = set()
        self._tried_at = -math.inf  # when an idle owner was last passed over
        self._owners: dict[RunIndex, NodeId | None] = {}  # cache of the owners among `_live`
        # Since when we wait for a run's owner.
        self._since: dict[tuple[RunIndex, NodeId], float] = {}

    def on_members(self, nodes: Iterable[NodeId]) -> None:
        """The tracker gave the full member list. Members that were passed over get another chance."""
        self.members = tuple(nodes)
        self._failed.clear()
        self._idle.clear()
        self._relist()

    def on_peer_joined(self, node: NodeId) -> None:
        """A member is connected. It may have joined after the lost tracker's last list."""
        if node in self._book.banned:
            return
        self._failed.discard(node)
        self._idle.discard(node)
        self._relist()

    def on_peer_left(self) -> None:
        """A neighbour's connection broke."""
        self._relist()

    def on_peer_failed(self, node: NodeId) -> None:
        """A dial failed, or the node sent wrong bytes: the next in order owns its runs."""
        self._failed.add(node)
        self._relist()

    def on_reachable(self) -> None:
        """A member has dialled this node."""
        self._reachable = True
        self._relist()

    def on_new_runs(self, node: NodeId, runs: RunSet) -> None:
        """A neighbour has runs that nobody had. If it should have read one of them, it isn't idle."""
        if node in self._idle and any(
            rendezvous.owner(run, (node, *self.live)) == node for run in bitset.members(runs)
        ):
            self._idle.discard(node)
            self._relist()

    @property
    def live(self) -> tuple[NodeId, ...]:
        """Members that aren't passed over, ascending; with this node they read the origin at the same time."""
        if self._live is None:
            known = {*self.members, *self._book.peers} if self.members else set()
            self._live = tuple(sorted(known - self._failed - self._idle))
        return self._live

    def plan(
        self, orphans: Sequence[RunIndex], quiet_s: float, now: float, patience_s: float,
        *, first: bool = False,
    ) -> Plan:  # fmt: skip
        """Decide about runs without a holder, which come in the order in which they are needed.

        For `quiet_s` no new run has come to this node or its neighbours, and an owner may bring nothing for
        `patience_s`. `first`: this node reads the first of them if its owner hasn't said that it takes part.
        """
        if self._brings_nothing:
            # Its neighbours may not read at all, and nobody gets what it reads.
            patience_s = min(patience_s, self._settings.owner_patience_s)
        self._pass_over_idle(quiet_s, now, patience_s)
        read: list[RunIndex] = []
        dial: list[Dial] = []
        since: dict[tuple[RunIndex, NodeId], float] = {}
        wake_at = math.inf
        for run in orphans:
            owner = self._owner(run)
            if owner == self._node or (first and owner not in self._book.peers):
                read.append(run)
            elif owner is not None:
                waits_from = since[run, owner] = self._since.get((run, owner), now)
                if owner not in self._book.peers and owner not in self._book.dialling:
                    due = waits_from + min(self._settings.stuck_after_s, DIAL_AFTER * patience_s)
                    if due > now:
                        wake_at = min(wake_at, due)
                    elif len(self._book.dialling) < MAX_DIALS:
                        dial += self._book.dials([owner])
            first = False
        self._since = since
        if since:
            wake_at = min(wake_at, now + SHORTER_PATIENCE * patience_s)
        return Plan(read, dial, wake_at)

    def _pass_over_idle(self, quiet_s: float, now: float, patience_s: float) -> None:
        """Skip an owner for which `patience_s` was waited in vain, one at a time: storage may be silent for all.

        If storage has delivered since the first one was skipped, all owners that were waited for are skipped.
        """
        delivers = bool(self._idle) and quiet_s < now - self._tried_at
        least_s = SHORTER_PATIENCE * patience_s if delivers else patience_s
        if min(quiet_s, now - self._tried_at) < least_s:
            return
        idle = dict.fromkeys(
            owner for (_, owner), at in self._since.items()
            if now >= at + patience_s and owner not in self._failed | self._idle
        )  # fmt: skip
        if idle:
            self._tried_at = now
            self._idle.update(list(idle) if delivers else list(idle)[:1])
            self._relist()

    def _owner(self, run: RunIndex) -> NodeId | None:
        if run not in self._owners:
            nodes = self.live
            if self._brings_nothing:
                nodes = tuple(node for node in nodes if node != self._node)
            self._owners[run] = rendezvous.owner(run, nodes)
        return self._owners[run]

    @property
    def _brings_nothing(self) -> bool:
        """Whether nobody could get what this node reads, and no neighbour has let it wait for long.

        Its neighbours pass it over when they dial it in vain, and read its runs themselves.
        """
        return not (self._reachable or self._idle) and any(n in self._book.peers for n in self.live)

    def _relist(self) -> None:
        self._live = None
        self._owners.clear()

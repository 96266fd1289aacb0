"""What one node reads from the origin by itself, and when, in a swarm that its tracker can't help."""

import math

from p2pcache.core import backoff, bitset
from p2pcache.core.origin.owners import OriginOwners, Plan
from p2pcache.core.origin.settings import (
    AHEAD_RATIO,
    FILL_A_LINK,
    FIRST_READS,
    HEAR_S,
    LEAST_PATIENCE_S,
    MIN_SHARE,
    MOST_UNDER_WAY,
    MOST_WAIT_S,
    PATIENCE_RATIO,
    RETURN_S,
)
from p2pcache.core.peers.settings import PAUSE_MAX_S, PAUSE_S
from p2pcache.core.peers.timing import SwarmPace
from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId, RunIndex, RunSet


class WithoutTracker:
    """What one node may read from the origin without leases, and how long it waits for others.

    It reads what it owns, but leaves for a while what the lost tracker may have granted to others. A node that is cut
    off from all others reads what it lacks even while the tracker is there: that sends it to nodes out of its reach.
    """

    def __init__(
        self, context: SwarmContext, pace: SwarmPace, *, tracker: bool, now: float
    ) -> None:
        """A node that has read nothing and has met no tracker yet; `tracker`: one is configured."""
        self._mine = context.states
        self._book = context.book
        self._settings = settings = context.settings
        self._dice = context.dice
        self._pace = pace
        self.tracker_up = False
        # From then on it may read what nobody has. A node that has met no tracker knows nothing of its leases.
        leases_s = settings.lease_ttl_s + settings.fallback_grace_s
        self._leases_end_at = now + leases_s if tracker else -math.inf
        self._lost_at = math.inf  # when a tracker that we met was lost
        self._back_at = -math.inf  # when one came back last
        # No other node can be reached, so that leases of others bring nothing.
        self.is_cut_off = False
        self._unheard = False  # the lost tracker never told of this swarm
        self._under_way = FILL_A_LINK  # leases of all nodes, as last told, and no fewer than this
        self.owners = OriginOwners(context)
        if not tracker:
            self.owners.on_members((context.node,))
        self._read_times = RollingMedian(USUAL_OF)  # of own reads that have ended, in seconds
        self._failures = 0  # failed reads in a row
        self._rest_until = now
        self._rested_at = -math.inf  # when the last rest began
        self._planned_at = now
        self._plan_at = now  # when to plan again

    def on_tracker_up(self, now: float) -> None:
        """The tracker is back and grants leases again."""
        self.tracker_up = True
        if self._lost_at < math.inf:
            self._back_at = now

    def on_granted(self, in_flight: int) -> None:
        """The tracker granted leases; with these all nodes have so many, 0: it doesn't say."""
        self._under_way = max(FILL_A_LINK, min(in_flight, MOST_UNDER_WAY))

    def on_tracker_down(self, now: float, *, unheard: bool) -> None:
        """The tracker is gone. Its leases are left to their readers for a while: neighbours tell what was read.

        `unheard`: it never told of this swarm. Then few of its members read by leases, and say so within `HEAR_S`.
        """
        if not self.tracker_up and not unheard:
            return
        self.tracker_up = False
        self._plan_at = self._lost_at = now
        self._unheard = unheard
        self._pace.on_tracker_lost()
        # No more reads than this node lacks runs, or the end of a small model would be waited for as if many were read.
        reads = min(self._under_way, self._mine.missing.bit_count())
        wait_s = HEAR_S if unheard else max(RETURN_S, min(self._reads_s(reads, now), MOST_WAIT_S))
        ends_at = now + wait_s
        if now < self._back_at + wait_s:  # it was back for a moment only, and granted little
            ends_at = min(ends_at, max(self._leases_end_at, now + RETURN_S))
        self._leases_end_at = ends_at

    def on_cut_off(self, now: float) -> None:
        """No other node can be reached, and leases of others bring nothing."""
        self.is_cut_off, self._plan_at = True, now

    def on_read_done(self, took_s: float) -> None:
        """This node has read a run, which took `took_s` seconds."""
        self._failures = 0
        self._read_times.add(took_s)

    def on_read_failed(self, started: float, now: float) -> None:
        """A read that began at `started` failed: no read begins for a while, longer with each failure."""
        if not self.governs or started <= self._rested_at:
            return  # concurrent reads fail together: that is one failure
        self._rested_at = now
        pause = backoff.pause_s(PAUSE_S, PAUSE_MAX_S, self._failures)
        self._failures += 1
        # Dice, so that the nodes don't return at the same moment.
        self._rest_until = now + pause * (0.5 + self._dice.random())

    def on_others_read(self, node: NodeId, runs: RunSet, quiet_s: float, now: float) -> None:
        """A neighbour has runs that nobody had. After a long silence (`quiet_s`) this means that storage is back."""
        self.owners.on_new_runs(node, runs & self._mine.needed)
        if quiet_s >= self._settings.stuck_after_s:
            self._rest_until = min(self._rest_until, now)
            self._failures = 0

    def replan(self, now: float) -> None:
        """Something changed that decides what may be read."""
        self._plan_at = now

    def replan_soon(self) -> None:
        """A neighbour has more: plan again, but not for every have batch."""
        soon = self._planned_at + self._settings.have_interval_s
        if soon < self._plan_at:
            self._plan_at = soon

    @property
    def is_sole(self) -> bool:
        """Whether no other node can bring anything: none is reached, or no tracker is configured and none has come."""
        return self.is_cut_off or (self._leases_end_at == -math.inf and len(self.owners.live) <= 1)

    def waits_for(self, now: float) -> str:
        """What a read of the origin waits for, as `Scheduler.waits_for`."""
        alone = self.alone(now)
        if self.is_sole or (alone and len(self.owners.live) <= 1):
            return "pause"
        if self.tracker_up:
            return "lease"
        return "owner" if alone else "tracker"

    @property
    def governs(self) -> bool:
        """Whether this node may read without leases: the tracker is away, or the node is cut off."""
        return not self.tracker_up or self.is_cut_off

    def alone(self, now: float) -> bool:
        """Whether the node decides by itself what to read: the lost tracker's leases are over."""
        return self.governs and now >= self._alone_at

    def due(self, now: float) -> bool:
        """Whether there is something to `plan` now."""
        return self.alone(now) and now >= max(self._plan_at, self._rest_until)

    def deadline(self) -> float:
        """When `due` will be true, in seconds."""
        return max(self._alone_at, self._plan_at, self._rest_until)

    def plan(self, rotten: RunSet, quiet_s: float, now: float) -> Plan:
        """Which runs to read and which members to dial. The origin's bytes of `rotten` runs are wrong.

        For `quiet_s` no new run has come to this node or its neighbours.
        """
        mine = self._mine
        busy = mine.requested | mine.fetching | mine.leased | rotten
        orphans = mine.needed & ~busy & ~self._book.rarity.held
        nearest = bitset.lowest(orphans, int(AHEAD_RATIO * self._under_way))
        runs = list(mine.in_order(nearest | orphans & mine.urgent))
        # Storage that refused our reads refused those of other owners, too: they weren't idle.
        quiet_s = min(quiet_s, now - self._alone_at, now - self._rest_until)
        if mine.fetching:
            quiet_s = 0.0  # our own reads don't end either, so storage is slow and no owner is passed over
        patience_s = self._patience_s(len(runs), now)
        # The owners' answers may wait behind runs of other models. The first run doesn't wait for them.
        first = self._unheard and not self._read_times and not mine.fetching
        plan = self.owners.plan(runs, quiet_s, now, patience_s, first=first)
        self._planned_at, self._plan_at = now, plan.wake_at
        return plan

    def plan_sole(self, rotten: RunSet, count: int, now: float) -> list[RunIndex]:
        """The next `count` runs of a node that no other node brings anything, and all urgent ones, in order."""
        self._planned_at, self._plan_at = now, math.inf
        mine = self._mine
        own = mine.needed & ~(mine.fetching | mine.leased | rotten)
        return list(mine.in_order(bitset.lowest(own, count) | own & mine.urgent))

    def max_reads(self, usual: int, most: int) -> int:
        """How many reads this node may have under way, where `usual` pay for one alone and none exceeds `most`."""
        if not self._read_times and not self.is_sole:
            usual = FIRST_READS  # the first run comes soon
        share = 1 if self.is_sole else max(1, len(self.owners.live))
        before = self._under_way if share > 1 else 0
        return max(MIN_SHARE, usual // share, min(before // share, most))

    @property
    def _alone_at(self) -> float:
        """From when on this node may read what nobody has: no lease of the lost tracker brings anything by then."""
        if self.is_cut_off:
            return -math.inf
        if len(self.owners.live) > 1:
            return self._leases_end_at
        return min(self._leases_end_at, self._lost_at + self._settings.owner_patience_s)

    def _patience_s(self, reads: int, now: float) -> float:
        """How long an owner may bring nothing before it is passed over, where all owners together may read so much."""
        known = self._read_times and self._pace.least_mean_s and len(self.owners.live) > 1
        least_s = LEAST_PATIENCE_S if known else self._settings.owner_patience_s
        return max(least_s, self._reads_s(reads, now))

    def _reads_s(self, reads: int, now: float) -> float:
        """How long so many reads of all nodes together may take, in seconds.

        The runs that owners read at once share the origin's uplink and end together, and until then nothing comes from
        anybody. With less patience all owners would be passed over and each node would read everything
        (docs/lab/0027).
        """
        if len(self.owners.live) <= 1:
            return 0.0  # no other owner's runs can reach this node
        pace_s = self._pace.estimated_s(now)
        if self._read_times:
            pace_s = min(pace_s, self._read_times.median)
        return PATIENCE_RATIO * reads * pace_s

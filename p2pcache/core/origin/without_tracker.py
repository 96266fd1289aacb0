"""One swarm on one node that its tracker can't help: what the node reads from the origin by itself, and when."""

import math
from random import Random

from p2pcache.core import backoff, bitset
from p2pcache.core.origin.owners import LEASED, LEAST_AHEAD, LOOK_AHEAD, Owners, Plan, patience
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.timing import SwarmPace
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunStates

MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Leases go out in file order: what lies so far above all that we know of when the tracker dies was leased to nobody.
# 16 are in flight (128 far from storage, but some above most of those have ended), as many more may be read unheard.
_BEYOND_LEASES = 48
_SPREAD = 32  # runs by which two nodes' knowledge differs at that moment
_RETURN_S = 0.5  # for a broken connection to be made again before the owners begin
_REST_S = 1.0  # after a failed read without a tracker; doubled each time
_REST_MAX_S = 30.0
_LATELY = 16  # reads whose mean counts
# What the tracker had granted is waited for as long as so many reads take: 8 s (`owner_patience_s`) where they take
# 0.67 s (50 Mbit/s, 256 KiB), which had been measured.
_GRANTED_TIMES = 12.0
_GRANTED_MIN_S = 1.0  # where they are quick: storage itself is this late now and then
# Runs without a holder that owners read at a time, times the reads that were under way before: as LOOK_AHEAD is
# to the usual leases. Their owners have unequal shares of them.
_AHEAD_TIMES = LOOK_AHEAD / LEASED
_FAR = 2  # ... where these were so many times the usual leases
_MOST_AHEAD = 160


class Trackerless:
    """What one node may read from the origin without leases, and how long it waits for others.

    Without an ownership nothing is read. What the tracker, if it was ours, may have granted when it was lost is
    left to whoever it granted it to, for a while. A node that reaches no other one is a part of the swarm of its own,
    and reads what it lacks also while the tracker is there, which can only send it to the others.
    """

    def __init__(
        self, node: int, mine: RunStates, book: PeerBook, settings: SwarmSettings, dice: Random,
        tempo: SwarmPace, *, tracker: bool, now: float,
    ) -> None:  # fmt: skip
        self._mine = mine
        self._book = book
        self._settings = settings
        self._dice = dice
        self._tempo = tempo
        self.up = False
        self._down_since = now if tracker else -math.inf
        self.is_cut_off = False  # no other node can be reached
        self._met = False  # the tracker that is gone was ours: we know about what it had granted
        self._return_s = 0.0  # how long we wait for it to come back
        self._was_over = False  # what it had granted isn't waited for any more
        self._leased = LEASED  # runs that it had granted at most
        self._unleased = 0  # runs (bits) that it can't have granted to anybody
        self._ahead = LOOK_AHEAD  # runs without a holder that owners read at a time
        self._granted_s = 0.0  # what our reads took when the tracker was lost
        self.owners = Owners(node, settings)
        if not tracker:
            self.owners.told((node,))
        self.reads = 0  # that we have done
        self._took_s = 0.0  # the mean of them, of late
        self._failures = 0  # in a row
        self._rest_until = now
        self._rested_at = -math.inf  # when the last rest began
        self._looked = now  # when we last looked at the runs that nobody has
        self._look_at = now  # ... and when to look again

    def tracker_down(self, now: float) -> None:
        """The tracker is gone."""
        if not self.up:
            return
        self.up = False
        self._down_since = self._look_at = now
        self._met, self._was_over = True, False
        self._tempo.on_tracker_lost()
        self._return_s = _RETURN_S * (1 + self._dice.random() / 2)
        mine = self._mine
        known = mine.have | mine.leased | self._book.rarity.held
        self._unleased = mine.full & ~bitset.full(known.bit_length() + _BEYOND_LEASES)
        # No more than was missing: a model of seven runs with two to go was waited for as if sixteen were being read,
        # 157 s. (By what is missing later the wait would shrink as they come, and the last of them be read again.)
        self._leased = min(LEASED, mine.missing.bit_count())
        self._granted_s = self._took_s
        # Little's law: as many reads as were under way, over all nodes. Somewhat more than usual is chance.
        under_way = self._took_s / self._tempo.least_mean_s if self._tempo.least_mean_s else 0.0
        ahead = int(_AHEAD_TIMES * under_way) if under_way >= _FAR * LEASED else LOOK_AHEAD
        self._ahead = min(_MOST_AHEAD, ahead)

    def cut_off(self, now: float) -> None:
        """Nobody can be reached, and nothing comes by leases."""
        self.is_cut_off, self._look_at = True, now

    def reached(self) -> None:
        """There is a neighbour."""
        self.is_cut_off = False

    def read(self, took_s: float) -> None:
        """We have read a run, in so long."""
        self._failures = 0
        self.reads += 1
        self._took_s += (took_s - self._took_s) / min(self.reads, _LATELY)

    def failed(self, started: float, now: float) -> None:
        """A read that we began at `started` came to nothing: storage rests, longer each time."""
        if not self.governs or started <= self._rested_at:
            return  # reads in flight together see one failure together: it counts once
        self._rested_at = now
        pause = backoff.pause_s(_REST_S, _REST_MAX_S, self._failures)
        self._failures += 1
        # nodes don't come back at once
        self._rest_until = now + pause * (0.5 + self._dice.random())

    def others_read(self, node: int, runs: int, quiet_s: float, now: float) -> None:
        """A neighbour has runs (bits) that nobody had, after nothing new for so long: storage that was away is back."""
        self.owners.brought(node, runs)
        if quiet_s >= self._settings.stuck_after_s:
            self._rest_until = min(self._rest_until, now)
            self._failures = 0

    def look_again(self, now: float) -> None:
        """Something changed that matters to what we may read."""
        self._look_at = now

    def look_soon(self) -> None:
        """A neighbour has more: look again, but not for every batch that comes in."""
        soon = self._looked + self._settings.have_interval_s
        if soon < self._look_at:
            self._look_at = soon

    @property
    def governs(self) -> bool:
        """Whether what is read isn't the tracker's business alone."""
        return not self.up or self.is_cut_off

    def alone(self, now: float) -> bool:
        """Whether we decide ourselves what to read."""
        return self.governs and now >= self._alone_at()

    def due(self, now: float) -> bool:
        """Whether there is something to `plan` now."""
        return self.alone(now) and now >= max(self._look_at, self._rest_until)

    def due_at(self) -> float:
        """When that will be, in seconds."""
        return max(self._alone_at(), self._look_at, self._rest_until)

    def plan(self, rotten: int, quiet_s: float, now: float) -> Plan:
        """What to read and whom to dial.

        Args:
            rotten: runs (bits) that the origin has wrong.
            quiet_s: for how long nothing has come our way from anybody.
            now: seconds.
        """
        if self.is_cut_off:
            self._looked, self._look_at = now, math.inf
            mine = self._mine
            own = mine.needed & ~(mine.fetching | mine.leased | rotten)
            first = bitset.lowest(own, _MOST_AHEAD) | own & mine.urgent
            return Plan(list(mine.in_order(first)), [], math.inf)
        runs = list(self._mine.in_order(self._nearest(rotten, now)))
        # While storage refused our reads it will have refused those of others: they aren't idle.
        quiet_s = min(quiet_s, now - self._alone_at(), now - self._rest_until)
        if self._mine.fetching:
            quiet_s = 0.0  # if ours don't end, storage is to blame: nobody is passed over for that
        patience_s = self._patience_s(len(runs), now)
        plan = self.owners.plan(runs, self._book.peers, quiet_s, now, patience_s)
        self._looked = now
        self._look_at = plan.wake_at if plan.wake_at > now else math.inf
        if not self._is_over(now) and self._over_at() < self._look_at:
            self._look_at = self._over_at()
        return plan

    def room(self, reads: int, most: int) -> int:
        """How many reads we may have under way, of the so many that one node alone has, and `most` at most."""
        share = 1 if self.is_cut_off else max(1, self.owners.share)
        far = self._ahead // share if share > 1 and self._ahead > LOOK_AHEAD else 0
        return max(MIN_SHARE, reads // share, min(far, most))

    def _alone_at(self) -> float:
        """When we may read what nobody else can be reading."""
        if self.is_cut_off:
            return -math.inf
        return self._down_since + self._return_s if self._met else self._over_at()

    def _over_at(self) -> float:
        """When what the tracker granted was read, or won't be."""
        if not self._met:
            return self._down_since + self._settings.lease_ttl_s + self._settings.fallback_grace_s
        # Our neighbours have told us what came of it.
        patience_s = self._patience_s(self._leased, self._down_since)
        if self._tempo.least_mean_s:
            reads_s = max(self._granted_s, LEASED * self._tempo.least_mean_s)
            patience_s = min(patience_s, max(_GRANTED_MIN_S, _GRANTED_TIMES * reads_s))
        return self._down_since + patience_s

    def _is_over(self, now: float) -> bool:
        """Whether that time has come. Then it has, whatever pace is seen later: all were waiting, so it looks slow."""
        self._was_over = self._was_over or now >= self._over_at()
        return self._was_over

    def _patience_s(self, reads: int, now: float) -> float:
        if self.owners.share <= 1:
            return self._settings.owner_patience_s  # whoever reads it, nothing of that can reach us
        pace_s = self._tempo.least_mean_s if self.reads else self._tempo.estimated_s(now)
        return patience(self._settings, reads, pace_s)

    def _nearest(self, rotten: int, now: float) -> int:
        """The runs (bits) that an owner should read next."""
        mine = self._mine
        busy = mine.requested | mine.fetching | mine.leased | rotten
        orphans = ahead = mine.needed & ~busy & ~self._book.rarity.held
        if not self._is_over(now):
            # Another owner may have heard of a few runs more and leaves alone what is free for us:
            # those must not take all places.
            orphans &= self._unleased
            ahead = orphans & self._unleased << _SPREAD or orphans
        disputed = orphans & ~ahead
        places = max(LEAST_AHEAD, self._ahead - disputed.bit_count())
        return disputed | bitset.lowest(ahead, places) | orphans & mine.urgent

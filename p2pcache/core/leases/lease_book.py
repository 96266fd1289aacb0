"""Who may read which run from the origin: one book per model. Pure.

A run is in exactly one of three states: *free* (nobody known has it and nobody reads it), *leased* (one node reads
it), or *done* (a node said that it proved it). Grants go out in file order, so that loaders get their bytes early and
neighbours always want the same region; each goes to the agent with the fewest in flight, for all uplinks.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import takewhile
from math import inf

from p2pcache.core import bitset
from p2pcache.core.leases import reachable_reader
from p2pcache.core.leases.lease import Lease, Story
from p2pcache.core.leases.origin_integrity import WrongBytes
from p2pcache.core.leases.rack_balance import Dealer
from p2pcache.core.leases.reader_choice import Readers
from p2pcache.core.leases.slow_readers import MOST_SLOW
from p2pcache.core.settings import LeaseSettings
from p2pcache.core.swarm.commands import ALL

DRAGGING = 2.0  # usual read times after which a lease makes room for another
UNASKED = 1.5  # times as patient as with somebody who is stuck: luck evens out, slowness doesn't
MAX_SKIPPED = 64  # runs that no present reader may have are passed over, but not without end


class LeaseBook:
    """The leases of one model.

    Invariants: `free` and `leased` are disjoint; `leased` is exactly the keys of `leases`, the oldest first; each
    lease's node has it among its runs in `Readers`, and nothing else is there; once `stopped`
    is set no run is granted.
    """

    def __init__(
        self, *, run_count: int, settings: LeaseSettings, seed: int, have: Mapping[int, int],
        dealer: Dealer | None = None, doubted: AbstractSet[int] = frozenset(), reached: AbstractSet[int] = frozenset(),
        void: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """An empty book: every run is free.

        Args:
            run_count: runs of the model.
            settings: the knobs.
            seed: of the dice that break ties.
            have: what each node has, kept up to date by its owner (a `Roster`).
            dealer: names the readers of choice, where there are racks.
            doubted: nodes that perhaps nobody can dial; the owner tells `readers` of changes.
            reached: nodes that somebody has dialled, kept up to date by the owner.
            void: what of `have` counts for nothing, kept up to date too.
        """
        self.run_count = run_count
        self.free, self.leased = bitset.full(run_count), 0
        self.leases: dict[int, Lease] = {}
        self.granted = 0  # leases given out, for metrics
        self.rescues = 0  # runs granted again though a live node has them ...
        self.lost = 0  # ... of them, before anybody was stuck; these have a cap of their own
        self.taken_over = 0  # leases taken from nodes that dragged on, unasked
        self.ends: Counter[str] = Counter()  # leases that are over, by why; for metrics
        self._again = 0  # of them (bits)
        self._looked_at = 0.0  # for leases that drag on
        self._expires_from = inf  # no lease expires before
        self._settings = settings
        self._have, self._reached, self._void = have, reached, {} if void is None else void
        self.readers = Readers(settings, random.Random(seed), dealer, doubted)
        self._demanded = 0  # runs (bits) that a loader waits for: granted before the others
        self._avoid: dict[int, set[int]] = {}  # run -> nodes that couldn't read it
        self._taken: dict[int, int] = {}  # run -> how often it was taken from a slow node
        self.wrong = WrongBytes(settings.mismatches_to_stop)  # its owner tells it who read what
        self._story = Story()

    @property
    def done(self) -> int:
        """Bits of runs that some node said it has."""
        return bitset.full(self.run_count) & ~self.free & ~self.leased

    @property
    def stopped(self) -> int | None:
        """The run whose origin bytes are wrong, so that no leases are given out."""
        return self.wrong.stopped

    def runs_of(self, node: int) -> set[int]:
        """The runs that a node reads now."""
        return self.readers.runs_of(node)

    # -- what nodes say ----------------------------------------------------------------------------

    def want(self, node: int, credit: int, wanted: int = ALL) -> None:
        """A node works on up to `credit` leases at once, of these runs (bits); 0: on none any more."""
        self.readers.set_credit(node, credit)
        self.readers.set_wanted(node, wanted if credit > 0 else ALL)

    def demand(self, runs: int) -> None:
        """A loader waits for these runs (bits): granted before the others. Who demands all has file order."""
        self._demanded |= runs & ~self.done

    def claim(self, node: int, fresh: int, now: float) -> dict[int, list[int]]:
        """A node has runs (bits) that it didn't have before.

        Returns:
            Leases to take back, by node: enough others have these runs.
        """
        self.free &= ~fresh
        revoked: dict[int, list[int]] = {}
        for run in bitset.members(fresh & self.leased):
            lease = self.leases[run]
            if lease.node == node:
                self._drop(run, now, "done")
                self.readers.succeeded(lease, now, len(self.leases) + 1)
                continue
            lease.others.add(self.wrong.bearer(node))
            if len(lease.others) >= self._settings.enough_holders:
                self._drop(run, now, "revoked")
                revoked.setdefault(lease.node, []).append(run)
        return revoked

    def renew(self, node: int, reading: int, now: float) -> None:
        """A heartbeat says which runs (bits) the node is reading: its leases live on.

        A read that nobody holds a lease for (the tracker restarted, or it had just expired) becomes one.
        """
        for run in bitset.members(reading & self.leased):
            lease = self.leases[run]
            if lease.node == node:
                lease.expires = now + self._settings.ttl_s
        for run in bitset.members(reading & self.free & ~self._have.get(node, 0)):
            self._lease(run, node, now, "adopted")

    def keep_only(self, node: int, reading: int, now: float) -> bool:
        """A fresh announcement: leases that it doesn't list never arrived, or ended unheard.

        Done until it is known who has them; returns whether there were any.
        """
        unheard = [run for run in sorted(self.readers.runs_of(node)) if not reading >> run & 1]
        for run in unheard:
            self._drop(run, now, "unheard")
        return bool(unheard)

    def failed(self, node: int, runs: int, now: float) -> None:
        """The node couldn't read its leases: others may, and it rests a while."""
        mine = self._mine(node, runs)
        for run in mine:
            self._give_up(run, now, "failed")
        if mine:
            self.readers.failed(node, now)

    def returned(self, node: int, runs: int, now: float) -> bool:
        """The node doesn't need its leases: somebody else seems to have the runs.

        They count as done until it is known who has them; returns whether any was its own.
        """
        mine = self._mine(node, runs)
        for run in mine:
            self._drop(run, now, "returned")
        return bool(mine)

    def mismatched(self, node: int, runs: int, now: float) -> list[int]:
        """The origin's bytes didn't match the manifest; returns the runs of which the node had the lease."""
        mine = self._mine(node, runs)
        self.failed(node, runs, now)
        return mine

    def kept(self, node: int, runs: int, now: float) -> None:
        """The node has runs for itself alone, as nobody believes it: it needs no leases of them, but others do."""
        for run in self._mine(node, runs):
            self._give_up(run, now, "kept")
        if self.readers.credit(node):
            self.readers.set_wanted(node, self.readers.wanted(node) & ~runs)

    def forget(self, node: int, now: float) -> None:
        """The node is gone. Its runs count as done until it is known that nobody has them."""
        for run in sorted(self.readers.runs_of(node)):
            self._drop(run, now, "gone")
        self.readers.forget(node)

    # -- what the tracker decides ------------------------------------------------------------------

    def release(self, runs: int, now: float) -> None:
        """Nobody has these runs (bits): they may be granted again."""
        back = runs & ~self.leased & ~self.free
        self.free |= back
        for run in bitset.members(back):
            self._story.note(now, run, "free", -1)

    @property
    def idle(self) -> bool:
        """Nothing is being read and nothing is left to read that anybody wants."""
        return not self.leases and not (self.free and self.readers.want(self.free))

    def hide(self, node: int, alone: int, now: float) -> None:
        """Others can't get at what this node has: they read, also what it has alone (bits)."""
        self.readers.hide(node, now)
        for run in bitset.members(alone & ~self.leased & ~self.free):
            self.rescue(run, now, capped=False)

    def rescue(self, run: int, now: float, *, capped: bool = True) -> bool:
        """Grant a done run again though a live node has it, if the cap allows it."""
        if capped and not self._spare:
            return False
        self.rescues += 1
        self._again |= 1 << run
        self._story.note(now, run, "rescued", -1)
        self.release(1 << run, now)
        return True

    def overdue(self, now: float) -> dict[int, list[int]]:
        """Take leases back that drag on, unasked: the others wait for their place in the order.

        Only exceptions (if many drag on it is the origin) that somebody else could read, within a cap of
        their own. On real links one read in thirty takes four usual times for no fault of its node, the
        first ones of a storm (packets lost) ten, while it reads dozens more: those are left to it.
        Returns runs to revoke, by node.
        """
        self._looked_at = now
        late = [run for run, when in self._taken_back_at(now) if now >= when]
        if not late or len(late) > max(1, MOST_SLOW * self._settings.in_flight):
            return {}
        revoked: dict[int, list[int]] = {}
        for run in late[: self._unasked]:
            node = self.leases[run].node
            if self.readers.quick_but(node) and (slow := self.take_over(run, now)) is not None:
                self.taken_over += 1
                revoked.setdefault(slow, []).append(run)
        return revoked

    def take_over(self, run: int, now: float) -> int | None:
        """Take a lease from a node that is far too slow, for somebody who is stuck without the run.

        Returns:
            The slow node (send it a revocation), or None if its lease isn't that old.
        """
        lease, before = self.leases.get(run), self._taken.get(run, 0)
        # Twice as long each time, or an origin that became slower would see every read cut off for ever.
        if lease is None or now < lease.since + self.readers.patience_s * 2.0**before:
            return None
        self._taken[run] = before + 1
        self._give_up(run, now, "too slow")
        self.readers.dragged(lease.node, lease.since, now)
        return lease.node

    def resume(self, now: float) -> bool:
        """Whether leases flow (again): a stop ends once nobody wants and a while has passed."""
        return self.wrong.resume(now, wanted=bool(len(self.readers)))

    def expire(self, now: float) -> bool:
        """Drop leases that weren't renewed; returns whether there were any. Ends rests, too."""
        self.readers.wake(now)  # also while nothing may be granted: or its time would never pass
        if now < self._expires_from:
            return False
        for run in (over := [run for run, lease in self.leases.items() if lease.expires <= now]):
            self._drop(run, now, "expired")
        self._expires_from = min((one.expires for one in self.leases.values()), default=inf)
        return bool(over)

    def grants(self, now: float) -> dict[int, list[int]]:
        """Give out what may be given out now: runs by node, demanded ones first, in file order."""
        self.readers.wake(now)
        given: dict[int, list[int]] = {}
        if self.stopped is not None or not self.free or not len(self.readers):
            return given
        skipped, have = 0, self._have
        # What only who doesn't deliver has is free, too: if nobody else reads, that mustn't keep it from the rest.
        candidates = self.free & self.readers.lacking(have) if self._void else self.free
        while candidates and self._in_flight(now) < self.at_once and skipped < MAX_SKIPPED:
            run = bitset.first(candidates & self._demanded or candidates)
            candidates &= ~(1 << run)
            again = bool(self._again >> run & 1)  # all who are quick may have it
            barred = self._barred(run)
            few = (
                reachable_reader.reader(self.readers, self._reached, barred, run, have)
                if again
                else None
            )
            node = few or self.readers.pick(barred, run, have, slow_too=again)
            if node is not None:
                self._lease(run, node, now, "granted")
                self.granted += 1
                given.setdefault(node, []).append(run)
            elif self.readers.choosy:
                candidates &= self.readers.acceptable()  # those with room may want others only
                skipped += 1
            elif run in self._avoid or again:
                skipped += 1  # only for this run nobody is left; the next may find a reader
            else:
                break
        return given

    def next_wakeup(self) -> float | None:
        """When a lease expires or a resting reader may be tried again."""
        ends = [self._expires_from] if self.leases else []
        if self._unasked and len(self.readers) > 1:
            # Who is late already and stays is looked at again with the next message.
            one = next((at for _, at in self._taken_back_at(inf) if at > self._looked_at), inf)
            ends += [at for _, at in self._taken_back_at(one) if at > self._looked_at]
        if self.free and self.stopped is None and len(self.leases) < self.at_once:
            rest = self.readers.next_rested()
            if rest is not None:
                ends.append(rest)
        return min(ends, default=None)

    def story(self, run: int) -> list[str]:
        """What happened to a run, oldest first."""
        return self._story.of(run)

    def check(self) -> None:
        """Assert the invariants."""
        assert not self.free & self.leased
        assert not (self.free | self.leased) >> self.run_count
        assert bitset.of(self.leases) == self.leased
        by_node: dict[int, set[int]] = {}
        for run, lease in self.leases.items():
            by_node.setdefault(lease.node, set()).add(run)
            assert not self._have.get(lease.node, 0) >> run & 1, self.story(run)
        self.readers.check(by_node)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def at_once(self) -> int:
        """How many leases may be in flight: one more for each that was read, up to the knob."""
        # Those that share the uplink end together: with few the swarm has something to spread sooner.
        return min(self.readers.at_once, self._settings.first_in_flight + self.ends["done"])

    def _in_flight(self, now: float) -> int:
        """Leases that count: a few that drag on don't keep the others waiting."""
        late = now - DRAGGING * self.readers.usual_s()
        if not self.readers.measured:
            return len(self.leases)
        dragging = sum(1 for _ in takewhile(lambda one: one.since < late, self.leases.values()))
        return len(self.leases) - min(dragging, int(MOST_SLOW * self._settings.in_flight))

    @property
    def rescue_cap(self) -> int:
        """How many runs may be read twice in all to help who waits."""
        return max(1, int(self._settings.rescue_cap * self.run_count))

    @property
    def _spare(self) -> int:
        return max(0, self.rescue_cap - (self.rescues - self.lost) - self.taken_over)

    @property
    def _unasked(self) -> int:
        """How many more leases may be taken back though nobody has complained."""
        cap = max(1, int(self._settings.unasked_cap * self.run_count))
        return min(self._spare, max(0, cap - self.taken_over))

    def _taken_back_at(self, until: float) -> Iterator[tuple[int, float]]:
        """When leases are taken back unasked, later than for somebody who is stuck; all those up to a time."""
        patience_s, taken = UNASKED * self.readers.patience_s, self._taken
        for run, lease in self.leases.items():  # the oldest first
            if lease.since + patience_s > until:
                break
            if not self.readers.overtaken(lease):
                yield run, lease.since + patience_s * 2.0 ** taken.get(run, 0)

    def _mine(self, node: int, runs: int) -> list[int]:
        return [r for r in bitset.members(runs & self.leased) if self.leases[r].node == node]

    def _barred(self, run: int) -> set[int]:
        """Nodes that couldn't read this run, unless nobody else is left to try."""
        avoid = self._avoid.get(run, set())
        return set() if avoid and self.readers.only(avoid, run, self._have) else avoid

    def _lease(self, run: int, node: int, now: float, why: str) -> None:
        self.leases[run] = Lease(node, now, now + self._settings.ttl_s, why == "adopted")
        self._expires_from = min(self._expires_from, now + self._settings.ttl_s)
        self.leased |= 1 << run
        self.free &= ~(1 << run)
        self._demanded &= ~(1 << run)
        self.readers.took(node, run)
        self._story.note(now, run, why, node)

    def _drop(self, run: int, now: float, why: str) -> None:
        lease = self.leases.pop(run)
        self.leased &= ~(1 << run)
        self.readers.gave_back(lease.node, run)
        self.ends[why] += 1
        self._story.note(now, run, why, lease.node)

    def _give_up(self, run: int, now: float, why: str) -> None:
        """Somebody else should read it, unless somebody else came to have it, hasn't left since and didn't lie."""
        lease = self.leases[run]
        self._drop(run, now, why)
        held = (have & ~self._void.get(node, 0) for node, have in self._have.items())
        if not lease.others or not any(have >> run & 1 for have in held):
            self.release(1 << run, now)
        self._avoid.setdefault(run, set()).add(lease.node)

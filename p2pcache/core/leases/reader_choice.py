"""Which node gets the next origin lease: the fewest in flight, never one much slower than the rest."""

import random
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import reduce
from math import ceil, inf
from operator import or_

from p2pcache.core import backoff
from p2pcache.core.leases.lease import Lease
from p2pcache.core.leases.rack_balance import Dealer
from p2pcache.core.leases.reachability import Hiding
from p2pcache.core.leases.slow_readers import Paces
from p2pcache.core.origin.read_concurrency import ReadConcurrency
from p2pcache.core.sampled_set import SampledSet
from p2pcache.core.settings import LeaseSettings
from p2pcache.core.swarm.commands import ALL

SAMPLE = 16  # candidates looked at per level: enough to find a fit one, few enough for 10,000 nodes
FIRST_REST_S = 0.5  # after a failed read; doubles ...
LAST_REST_S = 8.0  # ... up to here, so that an origin's outage isn't a hail of attempts
HOPELESS = 3  # failed reads in a row (3 s): somebody slow doesn't wait for that node any more


class Readers:
    """The nodes that work on leases, and how each fares.

    Invariants: a node is in `_ready[k]` if and only if it reads k runs and its credit is over k;
    `_slow` and `_resting` (until when; see `wake`) name nodes with credit only; `_out` are exactly the nodes
    with credit that are hidden or doubted and not pardoned, and in `_ready_out` instead;
    `_slow` and `_verdicts` are those of `paces`.
    """

    def __init__(
        self, settings: LeaseSettings, rng: random.Random, dealer: Dealer | None = None,
        doubted: AbstractSet[int] = frozenset(),
    ) -> None:  # fmt: skip
        """Nobody yet.

        Args:
            settings: the knobs.
            rng: breaks ties.
            dealer: names the nodes of choice, if racks matter.
            doubted: nodes that perhaps nobody can dial, kept by their owner, who tells us (`reviewed`).
        """
        self._settings = settings
        self._dealer = dealer
        self._rng = rng
        self._credit: dict[int, int] = {}
        self._concurrency = ReadConcurrency(
            settings.in_flight, self._most
        )  # from the origin to all of them
        self._runs: dict[int, set[int]] = {}
        self._wanted: dict[int, int] = {}  # of those that don't want every run: bits
        self._ready: list[SampledSet] = [SampledSet()]
        self.hiding = Hiding(doubted)
        self._out: set[int] = set()  # others can't get, or perhaps not, what they read ...
        self._ready_out: list[SampledSet] = [
            SampledSet()
        ]  # ... so these are asked when nobody else is left
        self.paces = Paces(settings.slow_node_ratio)
        self._slow, self._verdicts = self.paces.slow, self.paces.verdicts
        self._resting: dict[int, float] = {}
        self._failures: dict[int, int] = {}  # in a row
        self._done: dict[int, float] = {}  # when the youngest of its leases began that it has ended

    def __len__(self) -> int:
        return len(self._credit)

    def __iter__(self) -> Iterator[int]:
        return iter(self._credit)

    def runs_of(self, node: int) -> set[int]:
        """The runs that a node reads now."""
        return self._runs.get(node, set())

    @property
    def fit(self) -> int:
        """How many of them others can dial, so far as is known."""
        return len(self._credit) - len(self._out)

    def any_but(self, node: int) -> bool:
        """Whether anybody else works on leases."""
        return len(self._credit) > (node in self._credit)

    def only(self, nodes: set[int], run: int, have: Mapping[int, int]) -> bool:
        """Whether all who have use for this run are among these, or all but slow ones (also such as may try again)."""
        left = [node for node in self._credit if self._lacks(node, nodes, run, have)]
        if any(node not in self._verdicts for node in left):
            return False
        # An outage bars whoever tried, the quick ones first: the slow ones would be left with what they failed at.
        quick = (node for node in nodes if node in self._credit and node not in self._verdicts)
        return not left or any(self._lacks(node, set(), run, have) for node in quick)

    def want(self, runs: int) -> bool:
        """Whether any who work on leases have use for any of these (bits)."""
        everything = len(self._wanted) < len(self._credit)
        return everything or any(wanted & runs for wanted in self._wanted.values())

    def reviewed(self, node: int) -> None:
        """What is thought of a node's place has changed, or what it works on."""
        self._unready(node)
        if node in self._credit and not self.hiding.is_reached(node):
            self._out.add(node)
        else:
            self._out.discard(node)
        self._ready_again(node)

    def set_credit(self, node: int, credit: int) -> None:
        """How many leases at once the node works on; at most what the whole swarm may have."""
        self._unready(node)
        if credit > 0:
            self._credit[node] = min(credit, self._most)
        else:
            for table in (self._credit, self._wanted, self._slow, self._resting):
                table.pop(node, None)
        self.reviewed(node)

    def is_fit(
        self, node: int, barred: AbstractSet[int], run: int, have: Mapping[int, int]
    ) -> bool:
        """Whether a node reads, and others can get at it, and has use for this run."""
        out = node not in self._credit or node in self._out or node in self._resting
        return not out and self._lacks(node, barred, run, have)

    def credit(self, node: int) -> int:
        """How many leases at once a node works on."""
        return self._credit.get(node, 0)

    @property
    def at_once(self) -> int:
        """Leases that may be in flight over the swarm: the usual ones, or what the way holds (decision 0028)."""
        return self._concurrency.limit

    @property
    def _most(self) -> int:
        return self._settings.in_flight * (1 + self._settings.ahead_ratio)

    def set_wanted(self, node: int, wanted: int) -> None:
        """The node has use for these runs only (bits, or ALL)."""
        if wanted == ALL:
            self._wanted.pop(node, None)
        else:
            self._wanted[node] = wanted

    def wanted(self, node: int) -> int:
        """The runs (bits, or ALL) that the node has use for."""
        return self._wanted.get(node, ALL)

    @property
    def choosy(self) -> bool:
        """Whether any node has use for some runs only."""
        return bool(self._wanted)

    def acceptable(self) -> int:
        """Runs (bits) that somebody with room has use for, as far as a sample can tell."""
        runs = 0
        share = self._share(self.at_once)
        for bag in (*self._ready[:share], *self._ready_out[:share]):
            for node in bag.draw(self._rng, SAMPLE):
                runs |= self._wanted.get(node, ALL)
        return runs

    def lacking(self, have: Mapping[int, int]) -> int:
        """Runs (bits) that anybody has use for who works on leases; O(readers)."""
        lacked = (self._wanted.get(node, ALL) & ~have.get(node, 0) for node in self._credit)
        return reduce(or_, lacked, 0)

    def forget(self, node: int) -> None:
        """The node is gone (its leases were given back before)."""
        self.set_credit(node, 0)
        self.paces.forget(node)
        self._failures.pop(node, None)
        self.hiding.forget(node)
        self._done.pop(node, None)

    def overtaken(self, lease: Lease) -> bool:
        """Whether its node has ended a lease that it got later: not the node is slow, one connection is."""
        return self._done.get(lease.node, lease.since) > lease.since

    def took(self, node: int, run: int) -> None:
        """The node reads one more run."""
        self._unready(node)
        self._runs.setdefault(node, set()).add(run)
        if self._dealer is not None:
            self._dealer.took(node)
        self._ready_again(node)

    def gave_back(self, node: int, run: int) -> None:
        """The node reads this run no longer."""
        self._unready(node)
        runs = self._runs[node]
        runs.remove(run)
        if self._dealer is not None:
            self._dealer.gave_back(node)
        if not runs:
            del self._runs[node]
        self._ready_again(node)

    def succeeded(self, lease: Lease, now: float, under_way: int) -> None:
        """The node of this lease has read its run; so many leases ran, this one among them."""
        node, since, took_s = lease.node, lease.since, now - lease.since
        if not lease.adopted:  # or nobody knows how long it took
            self._concurrency.on_read_done(took_s, under_way)
        self._done[node] = max(since, self._done.get(node, since))
        self._failures.pop(node, None)
        self._resting.pop(node, None)
        self.paces.read(node, since, now, self._credit.keys())

    def dragged(self, node: int, since: float, now: float) -> None:
        """A run was taken from the node, which had it since then: it is slow, if it isn't known yet."""
        self.paces.dragged(node, since, now, self._credit.keys())

    def quick_but(self, node: int) -> bool:
        """Whether anybody else works on leases who isn't slow."""
        return len(self._credit) - len(self._slow.keys() | {node}) > 0

    def failed(self, node: int, now: float) -> None:
        """The node couldn't read from the origin: it rests, longer each time."""
        count = self._failures[node] = self._failures.get(node, 0) + 1
        rest = backoff.pause_s(FIRST_REST_S, LAST_REST_S, count - 1)
        if node in self._credit:
            self._resting[node] = now + rest * self._rng.uniform(0.5, 1.0)

    def pardon(self, node: int, now: float) -> None:
        """It reaches nobody itself: it has to read, whoever gets at that."""
        self.hiding.pardon(node, now)
        self.reviewed(node)

    def hide(self, node: int, now: float) -> None:
        """Others can't get from the node what it has: let somebody else read."""
        self.hiding.hide(node, now)
        self.reviewed(node)

    def show(self, node: int) -> None:
        """Others can get from the node what it has, after all."""
        self.hiding.show(node)
        self.reviewed(node)

    @property
    def measured(self) -> bool:
        """Whether any read has ended: before that nobody can be called slow."""
        return self.paces.measured

    def usual_s(self) -> float:
        """The median of recent lease times in seconds, and never under the noise."""
        return self.paces.usual_s

    @property
    def patience_s(self) -> float:
        """How long a lease may take while somebody is stuck without its run; inf before any has ended.

        Where fewer reads share the way each takes less, but no less if it lost packets (decision 0038).
        """
        fewer = max(1.0, self._settings.in_flight / self.at_once)
        return self._settings.stuck_factor * self.usual_s() * fewer if self.measured else inf

    def wake(self, now: float) -> None:
        """End the rests that are over; a node that was slow gets another chance."""
        for table in self._rests:
            if table:  # mostly none is: each message comes by here
                for node in [n for n, until in table.items() if until <= now]:
                    del table[node]
                    if table is self.hiding.hidden or table is self.hiding.pardoned:
                        self.reviewed(node)

    def pick(
        self, barred: set[int], run: int, have: Mapping[int, int], *, slow_too: bool = False
    ) -> int | None:
        """The node that should read `run`, or None if nobody fit has room for it.

        Args:
            barred: nodes that couldn't.
            run: which.
            have: what each node has (bits).
            slow_too: a slow one, also if others may read it later.
        """
        if not self._credit:
            return None
        lines = self._ready if self.fit else self._ready_out
        found = self._pick(lines, barred, run, have, slow_too=slow_too)
        if found is None and lines is self._ready and self._out:
            fit = (n for n in self._credit if n not in self._out and n not in self._resting)
            if not any(self._lacks(node, barred, run, have) for node in fit):  # nor soon
                found = self._pick(self._ready_out, barred, run, have, slow_too=slow_too)
        return found

    def _pick(
        self, lines: list[SampledSet], barred: set[int], run: int, have: Mapping[int, int],
        *, slow_too: bool,
    ) -> int | None:  # fmt: skip
        found = self._pick_of(lines, barred, run, have, everybody=not self._slow)
        if found is None and self._slow:
            found = self._pick_of(lines, barred, run, have, everybody=True)
            if found is not None and not slow_too and self._awaits(lines, barred, run, have):
                return None
        return found

    def _awaits(
        self, lines: list[SampledSet], barred: set[int], run: int, have: Mapping[int, int]
    ) -> bool:
        """Whether somebody quick will read this run, if not now: rather than somebody slow."""
        out = lines is self._ready_out
        return any(
            node not in self._slow and (node in self._out) == out
            and (node not in self._resting or self._failures.get(node, 0) < HOPELESS)
            and self._lacks(node, barred, run, have)
            for node in self._credit
        )  # fmt: skip

    def _pick_of(
        self, lines: list[SampledSet], barred: set[int], run: int, have: Mapping[int, int],
        *, everybody: bool,
    ) -> int | None:  # fmt: skip
        at_once, usual = self.at_once, self._settings.in_flight
        share = self._share(at_once)
        # Racks have equal shares, whatever their size: the nodes of a small one read more, the more the more are read.
        dealt = max(share, self._share(usual) * at_once // usual)
        for node in self._dealer.order(run) if self._dealer is not None else ():
            room = len(self.runs_of(node)) < min(dealt, self._credit.get(node, 0))
            fit = node not in self._verdicts and (node in self._out) == (lines is self._ready_out)
            if room and fit and self._may_read(node, barred, run, have, everybody=everybody):
                return node
        # On parole: taken when all others are full, or the last run of all may be one that it sits on.
        spare: int | None = None
        for bag in lines[:share]:
            for node in bag.draw(self._rng, SAMPLE):
                if not self._may_read(node, barred, run, have, everybody=everybody):
                    continue
                if node not in self._verdicts:
                    return node
                spare = node if spare is None else spare
        return spare

    def _may_read(
        self, node: int, barred: set[int], run: int, have: Mapping[int, int], *, everybody: bool
    ) -> bool:
        rests = node in self._resting or (node in self._slow and not everybody)
        return not rests and self._lacks(node, barred, run, have)

    def _lacks(
        self, node: int, barred: AbstractSet[int], run: int, have: Mapping[int, int]
    ) -> bool:
        """Whether the node has use for this run and may try it, if not now."""
        if node in barred or have.get(node, 0) >> run & 1:
            return False
        return bool(self._wanted.get(node, ALL) >> run & 1)

    def next_rested(self) -> float | None:
        """When `wake` has something to do."""
        return min((until for table in self._rests for until in table.values()), default=None)

    @property
    def _rests(self) -> tuple[dict[int, float], ...]:
        return self._resting, self._slow, self.hiding.hidden, self.hiding.pardoned

    def check(self, by_node: Mapping[int, set[int]]) -> None:
        """Assert the invariants; `by_node` is what the book says each node reads."""
        assert self._runs == by_node
        assert self._out == {node for node in self._credit if not self.hiding.is_reached(node)}
        for bags, out in ((self._ready, False), (self._ready_out, True)):
            for count, bag in enumerate(bags):
                bag.check()
                want = {
                    n for n, c in self._credit.items()
                    if len(self.runs_of(n)) == count and c > count and (n in self._out) == out
                }  # fmt: skip
                assert set(bag) == want
        assert self._slow.keys() | self._wanted.keys() | self._resting.keys() <= self._credit.keys()

    def _share(self, at_once: int) -> int:
        """How many of so many leases at once are one node's fair share."""
        # What slow ones don't read falls to the others; nor does one on parole count, or it would have a share for
        # which all others are full; and none who stands aside.
        unfit = sum(1 for node in self._verdicts if node in self._credit and node not in self._out)
        fit = len(self._credit) - len(self._out) - unfit
        settings = self._settings
        # A lone node has its usual reads, and as many times more as all have: half of what `_concurrency` says.
        alone = ceil(settings.usual_credit * at_once / settings.in_flight)
        return min(alone, ceil(at_once / (fit or len(self._credit) or 1)))

    def _unready(self, node: int) -> None:
        count = len(self.runs_of(node))
        bags = self._ready_out if node in self._out else self._ready
        if count < len(bags):
            bags[count].discard(node)

    def _ready_again(self, node: int) -> None:
        count = len(self.runs_of(node))
        if count < self._credit.get(node, 0):
            bags = self._ready_out if node in self._out else self._ready
            while len(bags) <= count:
                bags.append(SampledSet())
            bags[count].add(node)

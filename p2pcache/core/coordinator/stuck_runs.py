"""Runs that members wait for in vain, and the members that have them but that nobody gets at. Pure.

Who is stuck is introduced to holders. A holder that didn't help two of them, or one and our own dial (`dialback`), is
out of the others' reach: it gets no lease while they work on some, and what it alone has is read again.

A holder that is connected and delivers nothing (a hung disk, every answer BUSY, bytes that drip) is named by whoever
asked it. Two who name it, or the only one who wants something, are believed: what it has counts for nothing, as if it
had left, until it delivers to one of those who named it, connects anew, or some time has passed.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf

from p2pcache.core import bitset
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import Audit
from p2pcache.core.leases.origin_integrity import by_id, witnesses_but
from p2pcache.core.leases.reachability import HIDDEN_S
from p2pcache.core.membership.dialback import DialBacks
from p2pcache.core.membership.outputs import Output, Send, Silent, Unreached
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol import messages as m

MAX_STUCK_RUNS = 32  # per message: a window; more is told again later
INTRODUCED = 4  # holders named per stuck run
SCARCE = 2  # holders at most, for a run to be worth a second read
RESCUE_AFTER_S = 4.0  # after the holders were introduced and didn't help
# Runs, however few a model has: four nodes that nobody can dial get two leases each before that is noticed. (With 4 %
# of 7 to 64 runs twelve nodes waited 12 s for the second of two such nodes, and storage gave the same.)
LEAST_LOST = 8
MAX_REMEMBERED = 20_000  # introductions remembered per swarm
ACCUSERS_TO_HIDE = 2  # nodes that were introduced in vain: one alone may be cut off itself
MAX_NAMED = 64  # holders in one notice: more than a node has neighbours
CUT_OFF_S = 60.0  # for so long who was introduced in vain isn't introduced anew
AGAIN_TIMES = 4  # more is read again for such a one, each time, ...
MOST_AGAIN = 4096  # ... up to so much: a tenth of a second of a tracker's time would be too long
AGAIN_AFTER_S = 2.0  # notices come every four seconds: two that are nearer are one
LOOK_S = 0.25  # between two looks at all that members have: 10,000 take some milliseconds


class OutOfReach:
    """One swarm's."""

    def __init__(
        self,
        roster: Roster,
        book: LeaseBook,
        audit: Audit,
        dials: DialBacks,
        bearer: Callable[[int], int] = by_id,
    ) -> None:
        """Nobody is stuck yet; `bearer` says whose a node id is."""
        self._roster = roster
        self._book = book
        self._audit = audit
        self._unreached = dials.unreached
        # (node, run) -> when, and to whom
        self._introduced: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        # Node -> when it was introduced in vain last, and how many runs were to be read again for it then.
        self._cut_off: dict[int, tuple[float, int]] = {}
        self._bearer = bearer
        self._in_vain: dict[int, set[int]] = {}  # holder -> bearers that don't reach it
        self._silent: dict[int, set[int]] = {}  # holder -> to whom it delivers nothing
        self._void: dict[int, float] = {}  # holders whose claims count for nothing, and until when
        # Of those that we can't dial: they have something new, or others want it only now.
        self._perhaps_lost: set[int] = set()
        self._look_at = -inf  # at those again

    def announced(self, node: int, now: float, out: list[Output]) -> None:
        """It connected: perhaps somebody has mended it."""
        self._in_vain.pop(node, None)
        self._cut_off.pop(node, None)
        self._believe(node, now, out)

    def left(self, node: int) -> None:
        """It is no member any more."""
        self._cut_off.pop(node, None)
        self._silent.pop(node, None)
        self._void.pop(node, None)
        for accusers in self._silent.values():
            accusers.discard(node)

    def has_news(self, node: int) -> None:
        """It has runs that it didn't have, or is seen in another way."""
        if node in self._unreached:
            self._perhaps_lost.add(node)

    def want(self, node: int, credit: int, wanted: int) -> None:
        """See `LeaseBook.want`; who comes to a swarm of nodes that it can't dial wants what they have."""
        before = self._book.readers.fit
        self._book.want(node, credit, wanted)
        if self._book.readers.fit > before == 0:
            self._perhaps_lost.update(one for one in self._unreached if one in self._roster)

    def step(self, now: float, out: list[Output]) -> None:
        """Have read again, before anybody waits for it, what members have alone that can't be dialled."""
        for node in [node for node, until in self._void.items() if until <= now]:
            self._believe(node, now, out)
        if not self._perhaps_lost or not self._book.readers.fit or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        most = max(LEAST_LOST, self._book.rescue_cap)
        if self._book.lost >= most:
            self._perhaps_lost.clear()
            return
        alone = self._roster.alone(self._perhaps_lost & self._unreached)
        self._perhaps_lost.clear()
        for run in bitset.members(alone & ~self._book.leased & ~self._book.free):
            if self._book.lost >= most:
                return  # no more: perhaps only the tracker can't dial it
            self._book.rescue(run, now, capped=False)
            self._book.lost += 1

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next."""
        ends = [*self._void.values()]
        if self._perhaps_lost and self._book.readers.fit:
            ends.append(self._look_at)
        return min(ends, default=None)

    def stuck(self, node: int, said: m.Stuck, now: float, out: list[Output]) -> None:
        """None of the node's neighbours has these runs: introduce holders, or free the runs."""
        count = self._roster.run_count
        lacks = bitset.from_bytes(said.lacks, count) if said.lacks else 0
        if node not in self._roster:
            return
        for holder in said.gives[:MAX_NAMED]:
            self._silent.get(holder, set()).discard(node)
            self._believe(holder, now, out)
        holders: dict[int, None] = {}
        wanted = m.run_bits(said.runs[:MAX_STUCK_RUNS], count)
        vain = {one for one in said.vain[:MAX_NAMED] if one in self._roster and one != node}
        for holder in sorted(vain):
            self._named(holder, node, now, out)
        # With the origin idle, who waits matters more than a second read: holders that nobody can
        # dial (a firewall, a partition that we don't see) would hold up the whole swarm for ever.
        idle = self._book.idle
        if vain and self._audit.busy:
            return  # what they have counts for nobody any more, and is free as soon as the others have said theirs
        for run in bitset.members(wanted):
            self._accuse(node, run, now, out)
        if idle and vain:
            wanted &= ~self._read_instead(node, wanted | lacks, vain, now)
        if idle:
            wanted &= ~self._read_for(node, wanted | lacks, now)
        for run in bitset.members(wanted & ~self._book.free):
            if run in self._book.leases:
                self._hurry(node, run, now, out)
            else:
                holders |= dict.fromkeys(self._help(node, run, now, idle=idle))
        if holders:
            out.append(Send(node, self._roster.introduction(holders)))

    # -- inside ------------------------------------------------------------------------------------

    def _named(self, holder: int, node: int, now: float, out: list[Output]) -> None:
        """A node asked a holder in vain. Enough of them, and what it has counts for nothing."""
        accusers = self._silent.setdefault(holder, set())
        accusers.add(node)
        others = sum(1 for _ in islice(self._waiting(holder), ACCUSERS_TO_HIDE))
        if len(accusers) < others or self._roster.is_shunned(holder):
            return
        if holder not in self._void:
            out.append(Silent(holder, self._roster.digest))
            self._roster.doubt(holder)
            self._audit.suspect(now)  # as if it had left: who else has it by now says so first
        self._void[holder] = now + HIDDEN_S
        self._book.readers.hide(holder, now)

    def _waiting(self, holder: int) -> Iterator[int]:
        """Members that lack runs and could say that this one gives them none."""
        readers = self._book.readers
        return (node for node in readers if node != holder and node in self._roster)

    def _believe(self, holder: int, now: float, out: list[Output]) -> None:
        """A holder delivers, or may have been mended: what it has counts again."""
        if self._void.pop(holder, None) is None:
            return
        self._silent.pop(holder, None)
        self._book.readers.show(holder)
        void = self._roster.believe(holder)
        for reader, runs in self._book.claim(holder, void, now).items():
            out.append(Send(reader, m.Revoke(self._roster.digest, tuple(runs))))

    def _read_instead(self, node: int, lacks: int, vain: set[int], now: float) -> int:
        """Have read what only those have who give the node nothing; returns the runs (bits).

        It may be cut off from them itself: the others go on asking them.
        """
        others = lacks & ~self._book.leased & ~self._book.free & ~self._roster.have[node]
        beyond = bitset.lowest(others & self._roster.only(vain), MOST_AGAIN)
        for run in bitset.members(beyond):
            self._read_again(node, run, now)
        return beyond

    def _read_for(self, node: int, lacks: int, now: float) -> int:
        """Have read what a part of the swarm lacks that is cut off from the rest; returns the runs (bits).

        It learns of what the others have in vain, window after window: more each time is read at once.
        """
        last, count = self._cut_off.get(node, (-inf, 0))
        if not AGAIN_AFTER_S <= now - last < CUT_OFF_S:
            return 0
        count = min(AGAIN_TIMES * count, MOST_AGAIN)
        others = lacks & ~self._book.leased & ~self._book.free & ~self._roster.have[node]
        beyond = bitset.lowest(others, count)
        if beyond:
            self._cut_off[node] = now, count
        for run in bitset.members(beyond):
            self._read_again(node, run, now)
        return beyond

    def _read_again(self, node: int, run: int, now: float, *, capped: bool = False) -> None:
        if node in self._unreached:
            self._book.readers.pardon(node, now)  # cut off both ways: nobody else reads for it
        self._book.rescue(run, now, capped=capped)

    def _hurry(self, node: int, run: int, now: float, out: list[Output]) -> None:
        """Somebody waits for a run that is being read: not by a node that is far too slow."""
        if self._book.leases[run].node == node:
            return
        slow = self._book.take_over(run, now)
        if slow is not None:
            out.append(Send(slow, m.Revoke(self._roster.digest, (run,))))

    def _help(self, node: int, run: int, now: float, *, idle: bool) -> list[int]:
        """Holders of a run to introduce to the node; none if it may be read again instead."""
        found = self._roster.holders(run, without=node, limit=INTRODUCED)
        if not found:
            if not self._roster.have[node] >> run & 1:
                self._roster.doubt_run(run)
                self._book.release(1 << run, now)
            return []
        key = (node, run)
        before = self._introduced.get(key)
        if before is None:
            if len(self._introduced) >= MAX_REMEMBERED:
                self._introduced.clear()
            self._introduced[key] = now, tuple(found)
        elif (idle or len(found) <= SCARCE) and now - before[0] >= RESCUE_AFTER_S:
            del self._introduced[key]
            hidden = self._book.readers.hiding.hidden.keys() >= {*found}
            self._read_again(node, run, now, capped=not idle and not hidden)
            if idle:
                self._cut_off[node] = now, MAX_STUCK_RUNS
        return found

    def _accuse(self, node: int, run: int, now: float, out: list[Output]) -> None:
        """Whom the node was sent to for this run didn't help: perhaps nobody gets at what they have.

        A node behind a firewall would hold everybody up, window after window, with what it had read
        until this was noticed.
        """
        since, holders = self._introduced.get((node, run), (now, ()))
        if now - since < RESCUE_AFTER_S or len(holders) > SCARCE:
            return
        for holder in holders:
            if holder in self._roster and holder not in self._book.readers.hiding.hidden:
                accusers = self._in_vain.setdefault(holder, set())
                accusers.add(self._bearer(node))
                needed = ACCUSERS_TO_HIDE - (holder in self._unreached)
                there_are = witnesses_but(holder, self._roster, self._bearer, needed)
                if len(accusers) >= max(1, there_are):
                    self._hide(holder, now, out)

    def _hide(self, holder: int, now: float, out: list[Output]) -> None:
        del self._in_vain[holder]
        out.append(Unreached(holder, self._roster.digest))
        self._book.hide(holder, self._roster.alone({holder}), now)

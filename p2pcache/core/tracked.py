"""One swarm as the tracker sees it: its roster, its leases, and what follows from each message. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from p2pcache.core import chunkset
from p2pcache.core import messages as m
from p2pcache.core.audit import Audit
from p2pcache.core.commands import ALL
from p2pcache.core.dealing import Dealer
from p2pcache.core.dialback import DialBacks
from p2pcache.core.hold import Hold
from p2pcache.core.leases import LeaseBook
from p2pcache.core.ledger import Ledger
from p2pcache.core.roster import Roster
from p2pcache.core.settings import LeaseSettings, MemberSettings

MAX_LISTED_LEASES = 256  # per message; nodes work on a handful
MAX_DEMANDED = 256  # runs per message; more is told when these are here
MAX_STUCK_RUNS = 32  # per message: a window; more is told again later
INTRODUCED = 4  # holders named per stuck run
SCARCE = 2  # holders at most, for a run to be worth a second read
RESCUE_AFTER_S = 4.0  # after the holders were introduced and didn't help
MAX_REMEMBERED = 20_000  # introductions remembered per swarm
ACCUSERS_TO_HIDE = 2  # nodes that were introduced in vain: one alone may be cut off itself
BLAMES_TO_SHUN = 2  # nodes that got wrong bytes from a peer before it is believed of it


@dataclass(slots=True)
class Send:
    """Send a message to a member (dropped if its connection is gone: it will announce again)."""

    node: int
    message: m.ToAgent


@dataclass(slots=True)
class Close:
    """End a member's connection."""

    node: int
    reason: str


@dataclass(slots=True)
class DialBack:
    """See whether a member can be dialled where it says; `Tracking.dialled` is told how it ends."""

    node: int
    member: m.Member


@dataclass(slots=True)
class Unreached:
    """People should know: what a member has read of a model, nobody could get from it."""

    node: int
    digest: str  # empty: of no model, it could not be dialled


Output = Send | Close | DialBack | Unreached


class TrackedSwarm:
    """What the tracker does for one model. Outputs are appended to the list that is handed in."""

    def __init__(
        self,
        digest: str,
        run_count: int,
        *,
        epoch: int,
        members: MemberSettings,
        leases: LeaseSettings,
        dials: DialBacks,
        now: float,
        remembered: Iterable[int] = (),
    ) -> None:
        """A swarm's first member came; `remembered`: its members before the tracker restarted."""
        seed = int(digest[:16], 16) ^ epoch
        self.digest = digest
        self.roster = Roster(digest, run_count, seed)
        self.book = LeaseBook(
            run_count=run_count, settings=leases, seed=seed, have=self.roster.have,
            dealer=Dealer(self.roster), doubted=dials.doubted,
        )  # fmt: skip
        self.audit = Audit()
        self.ledger = Ledger()
        self.blames = 0  # wrong bytes from a peer, as told by members; for metrics
        self.hold = Hold(leases.ttl_s, now, remembered)
        self.scheduled: float | None = None  # the wakeup that its owner has noted
        self._unreached = dials.unreached
        self._epoch = epoch
        self._neighbours = members.neighbours
        # (node, run) -> when, and to whom
        self._introduced: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        self._in_vain: dict[int, set[int]] = {}  # holder -> who doesn't reach it
        self._blames: dict[int, set[int]] = {}  # node -> who got wrong bytes from it

    # -- what members say --------------------------------------------------------------------------

    def announced(
        self,
        member: m.Member,
        said: m.SwarmState,
        present: AbstractSet[int],
        now: float,
        out: list[Output],
    ) -> None:
        """A member connected: what it lists is all there is."""
        node = member.node
        self._blames.pop(node, None)
        self._in_vain.pop(node, None)
        if self.roster.is_shunned(node):
            self.roster.leave(node)  # it proved its bytes again, or is another process
        reading = self.book.bits(said.leases[:MAX_LISTED_LEASES])
        self._state(member, said, present, now, out)
        if self.book.keep_only(node, reading, now):
            self.audit.suspect(now)
        if not said.complete:
            self._welcome(node, out)

    def entered(
        self,
        member: m.Member,
        said: m.SwarmState,
        present: AbstractSet[int],
        now: float,
        out: list[Output],
    ) -> None:
        """A member takes part from now on, or wants fresh neighbours."""
        self._state(member, said, present, now, out)
        if said.complete:  # it dials nobody: the list would be out of date before it is of use
            nobody = m.Swarm(self.digest, self.roster.version, full=True)
            out.append(Send(member.node, nobody))
        else:
            self._welcome(member.node, out)

    def beat(
        self,
        member: m.Member,
        said: m.SwarmState,
        present: AbstractSet[int],
        now: float,
        out: list[Output],
    ) -> None:
        """A heartbeat told of this swarm."""
        node = member.node
        listed = node in self.roster and node not in self.roster.complete
        self._state(member, said, present, now, out)
        if not listed and not said.complete:  # it lost runs: from now on it needs the list
            self._welcome(node, out)

    def reported(self, node: int, said: m.LeaseReport, now: float, out: list[Output]) -> None:
        """What became of leases."""
        if node not in self.roster:
            return
        book = self.book
        done, failed = book.bits(said.done), book.bits(said.failed)
        returned, mismatched = book.bits(said.returned), book.bits(said.mismatched)
        demanded = book.bits(said.demanded[:MAX_DEMANDED])
        wanted = self._bits(said.wanted)
        self._claim(node, self.roster.have[node] | done, now, out)
        if said.epoch == self._epoch:
            book.failed(node, failed, now)
            if book.returned(node, returned, now):
                self.audit.suspect(now)
        if mismatched:
            self._mismatched(node, mismatched, now, out)
        if said.credit >= 0:
            self._want(node, said.credit, wanted, out, now)
        book.demand(demanded)

    def stuck(self, node: int, said: m.Stuck, now: float, out: list[Output]) -> None:
        """None of the node's neighbours has these runs: introduce holders, or free the runs."""
        if node not in self.roster:
            return
        holders: dict[int, None] = {}
        wanted = self.book.bits(said.runs[:MAX_STUCK_RUNS])
        # With the origin idle, who waits matters more than a second read: holders that nobody can
        # dial (a firewall, a partition that we don't see) would hold up the whole swarm for ever.
        idle = self.book.idle
        for run in chunkset.members(wanted):
            self._accuse(node, run, now, out)
        for run in chunkset.members(wanted & ~self.book.free):
            if run in self.book.leases:
                self._hurry(node, run, now, out)
            else:
                holders |= dict.fromkeys(self._help(node, run, now, idle=idle))
        if holders:
            out.append(Send(node, self.roster.introduction(holders)))

    def blamed(self, accuser: int, node: int, now: float) -> None:
        """A member got bytes from another that don't match."""
        if accuser == node or accuser not in self.roster or node not in self.roster:
            return
        self.blames += 1
        accusers = self._blames.setdefault(node, set())
        accusers.add(accuser)
        enough = min(BLAMES_TO_SHUN, len(self.roster) - 1)  # of two members only one can accuse
        if len(accusers) >= enough and not self.roster.is_shunned(node):
            self.roster.shun(node)
            self.book.forget(node, now)
            self.audit.suspect(now)

    def paused(self, node: int) -> None:
        """Its connection broke: what it reads goes on, but it gets nothing new."""
        self.book.want(node, 0)

    def doubted(self, node: int, now: float, *, lost: bool) -> None:
        """Whether others can dial it is seen in another way; `lost`: they can't, so far as the tracker can tell."""
        self.book.readers.reviewed(node)
        alone = self._alone(node) if lost else 0
        # What it read before that was known. No more than a little is read twice: perhaps only the tracker can't.
        for run in chunkset.members(alone & ~self.book.leased & ~self.book.free):
            if not self.book.rescue(run, now):
                break

    def left(self, node: int, now: float) -> None:
        """It has nothing of this model any more, or is gone."""
        self.roster.leave(node)
        self.book.forget(node, now)
        self._blames.pop(node, None)
        self.audit.answered(node)
        self.audit.suspect(now)

    # -- what follows ------------------------------------------------------------------------------

    def step(self, now: float, out: list[Output]) -> None:
        """Do all that is due: expiry, polls, grants, the members' list."""
        if self.book.expire(now):
            self.audit.suspect(now)
        for node, runs in self.book.overdue(now).items():
            out.append(Send(node, m.Revoke(self.digest, tuple(runs))))
        poll = m.Poll(self.digest)
        out.extend(Send(node, poll) for node in self.audit.step(self.roster, self.book, now))
        if not self.hold.holds(now):
            for node, runs in self.book.grants(now).items():
                out.append(Send(node, m.Grant(self.digest, self._epoch, tuple(runs))))
        delta = self.roster.flush(now)
        if delta is not None:
            out.extend(Send(node, delta) for node in self.roster.needy())

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next."""
        times = [self.book.next_wakeup(), self.audit.next_wakeup(), self.roster.flush_at()]
        if self.hold.waiting and self.book.free and len(self.book.readers):
            times.append(self.hold.until)
        return min((t for t in times if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.roster.check()
        self.book.check()
        self.audit.check()
        covered = self.roster.covered()
        assert not covered & self.book.free or self.book.rescues, "a held run is free"
        assert not self.book.done & ~covered or self.audit.busy, "a run that nobody has isn't free"

    # -- inside ------------------------------------------------------------------------------------

    def _state(
        self,
        member: m.Member,
        said: m.SwarmState,
        present: AbstractSet[int],
        now: float,
        out: list[Output],
    ) -> None:
        node, roster = member.node, self.roster
        self.hold.arrived(node)
        have = chunkset.full(roster.run_count)
        if not said.complete:
            have = chunkset.from_bytes(said.have, roster.run_count) if said.have else 0
            self.hold.knows(said.known, present, now)
        reading = self.book.bits(said.leases[:MAX_LISTED_LEASES])
        roster.enter(member)
        self.ledger.told(node, said)
        roster.pulls(node, pulled=said.pulled)
        if roster.have[node] & ~have:
            self.audit.suspect(now)
        self._claim(node, have, now, out)
        if not roster.is_shunned(node):
            self.book.renew(node, reading, now)
        self._want(node, 0 if said.complete else said.credit, self._bits(said.wanted), out, now)
        self.audit.answered(node)

    def _claim(self, node: int, have: int, now: float, out: list[Output]) -> None:
        fresh = self.roster.update(node, have)
        if fresh:
            for reader, runs in self.book.claim(node, fresh, now).items():
                out.append(Send(reader, m.Revoke(self.digest, tuple(runs))))

    def _bits(self, wanted: bytes) -> int:
        return chunkset.from_bytes(wanted, self.roster.run_count) if wanted else ALL

    def _want(self, node: int, credit: int, wanted: int, out: list[Output], now: float) -> None:
        if credit > 0 and not self.book.resume(now):
            out.append(Send(node, self._stop()))
            return
        self.book.want(node, 0 if self.roster.is_shunned(node) else credit, wanted)

    def _mismatched(self, node: int, runs: int, now: float, out: list[Output]) -> None:
        if self.book.mismatched(node, runs, now) is not None:
            stop = self._stop()
            out.extend(Send(other, stop) for other in self.roster.needy())

    def _stop(self) -> m.Stop:
        run = self.book.stopped if self.book.stopped is not None else -1
        reason = f"run {run} is gone there, or doesn't match the manifest"
        return m.Stop(self.digest, run, reason)

    def _welcome(self, node: int, out: list[Output]) -> None:
        """The list as of its version, then whom to dial (who joined since comes with the next delta)."""
        out.append(Send(node, self.roster.full_list()))
        neighbours = self.roster.introduce(node, self._neighbours)
        if neighbours is not None:
            out.append(Send(node, neighbours))

    def _hurry(self, node: int, run: int, now: float, out: list[Output]) -> None:
        """Somebody waits for a run that is being read: not by a node that is far too slow."""
        if self.book.leases[run].node == node:
            return
        slow = self.book.take_over(run, now)
        if slow is not None:
            out.append(Send(slow, m.Revoke(self.digest, (run,))))

    def _help(self, node: int, run: int, now: float, *, idle: bool) -> list[int]:
        """Holders of a run to introduce to the node; none if it may be read again instead."""
        found = self.roster.holders(run, without=node, limit=INTRODUCED)
        if not found:
            if not self.roster.have[node] >> run & 1:
                self.book.release(1 << run, now)
            return []
        key = (node, run)
        before = self._introduced.get(key)
        if before is None:
            if len(self._introduced) >= MAX_REMEMBERED:
                self._introduced.clear()
            self._introduced[key] = now, tuple(found)
        elif (idle or len(found) <= SCARCE) and now - before[0] >= RESCUE_AFTER_S:
            del self._introduced[key]
            hidden = self.book.readers.hidden >= {*found}
            self.book.rescue(run, now, capped=not idle and not hidden)
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
            if holder in self.roster and holder not in self.book.readers.hidden:
                accusers = self._in_vain.setdefault(holder, set())
                accusers.add(node)
                needed = ACCUSERS_TO_HIDE - (holder in self._unreached)
                if len(accusers) >= min(needed, len(self.roster) - 1):
                    self._hide(holder, now)
                    out.append(Unreached(holder, self.digest))

    def _hide(self, holder: int, now: float) -> None:
        del self._in_vain[holder]
        self.book.hide(holder, self._alone(holder), now)

    def _alone(self, node: int) -> int:
        return self.roster.have[node] & ~self.roster.covered(without=node)

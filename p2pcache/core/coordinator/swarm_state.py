"""One swarm as the tracker sees it: its roster, its leases, and what follows from each message. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import Doubts
from p2pcache.core.coordinator.stuck_runs import OutOfReach
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import Audit
from p2pcache.core.leases.origin_integrity import Word, by_id, witnesses_but
from p2pcache.core.leases.rack_balance import Dealer
from p2pcache.core.leases.startup_barrier import Hold
from p2pcache.core.membership.dialback import DialBacks
from p2pcache.core.membership.outputs import Output, Send
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.usage_ledger import Ledger
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import bearer_of
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.core.swarm.commands import ALL

MAX_LISTED_LEASES = 256  # per message; nodes work on a handful
MAX_DEMANDED = 256  # runs per message; more is told when these are here
BLAMES_TO_SHUN = 2  # nodes that got wrong bytes from a peer before it is believed of it


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
        self._bearer = bearer_of if members.certified else by_id
        self.digest = digest
        self.roster = Roster(digest, run_count, seed)
        self.book = LeaseBook(
            run_count=run_count, settings=leases, seed=seed, have=self.roster.have,
            dealer=Dealer(self.roster), doubted=dials.doubted, reached=dials.reached, void=self.roster.void,
        )  # fmt: skip
        self.audit = Audit()
        self.ledger = Ledger()
        self.blames = 0  # wrong bytes from a peer, as told by members; for metrics
        self.hold = Hold(leases.ttl_s, now, remembered)
        self.scheduled: float | None = None  # the wakeup that its owner has noted
        self.out_of_reach = OutOfReach(self.roster, self.book, self.audit, dials, self._bearer)
        self.book.wrong.bearer = self._bearer
        self.doubts = Doubts(self.roster, self.book)
        self._epoch = epoch
        self._neighbours = members.neighbours
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
        self.doubts.over(node)
        self.out_of_reach.announced(node, now, out)
        if self.roster.is_shunned(node):
            self.roster.leave(node)  # it proved its bytes again, or is another process
            self.book.readers.hiding.shunned.discard(node)
        reading = self._runs(said.leases[:MAX_LISTED_LEASES])
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
        done, failed = self._runs(said.done), self._runs(said.failed)
        returned, mismatched = self._runs(said.returned), self._runs(said.mismatched)
        demanded = self._runs(said.demanded[:MAX_DEMANDED])
        wanted = self._bits(said.wanted)
        self._claim(node, self.roster.has(node) | done, now, out)
        if said.epoch == self._epoch:
            book.failed(node, failed, now)
            if book.returned(node, returned, now):
                self.audit.suspect(now)
        if mismatched:
            self.doubts.mismatched(node, mismatched, now, out)
        if said.credit >= 0:
            self._want(node, said.credit, wanted, out, now)
        book.demand(demanded)

    def blamed(self, accuser: int, node: int, now: float) -> None:
        """A member got bytes from another that don't match."""
        if accuser not in self.roster or node not in self.roster:
            return
        bearer = self._bearer(accuser)
        if bearer == self._bearer(node):
            return
        self.blames += 1
        accusers = self._blames.setdefault(node, set())
        accusers.add(bearer)
        # Of two members only one can accuse.
        enough = witnesses_but(node, self.roster, self._bearer, BLAMES_TO_SHUN)
        if len(accusers) >= enough and not self.roster.is_shunned(node):
            self.roster.shun(node)
            self.book.forget(node, now)
            self.book.readers.hiding.shunned.add(node)  # what it reads is of use to nobody else
            self.audit.suspect(now)

    def witnessed(self, node: int, run: int, word: Word, now: float, out: list[Output]) -> None:
        """The tracker has read a run from the origin, because of what this node said of it."""
        self.doubts.heard(node, run, word, now, out)

    def paused(self, node: int) -> None:
        """Its connection broke: what it reads goes on, but it gets nothing new."""
        self.book.want(node, 0)

    def doubted(self, node: int) -> None:
        """Whether others can dial it is seen in another way."""
        self.book.readers.reviewed(node)
        self.out_of_reach.has_news(node)

    def left(self, node: int, now: float) -> None:
        """It has nothing of this model any more, or is gone."""
        self.roster.leave(node)
        self.out_of_reach.left(node)
        self.book.forget(node, now)
        self.doubts.over(node)
        self._blames.pop(node, None)
        self.audit.answered(node)
        self.audit.suspect(now)

    # -- what follows ------------------------------------------------------------------------------

    def step(self, now: float, out: list[Output]) -> None:
        """Do all that is due: expiry, polls, grants, the members' list."""
        if self.book.expire(now):
            self.audit.suspect(now)
        self.out_of_reach.step(now, out)
        for node, runs in self.book.overdue(now).items():
            out.append(Send(node, m.Revoke(self.digest, tuple(runs))))
        poll = m.Poll(self.digest)
        out.extend(Send(node, poll) for node in self.audit.step(self.roster, self.book, now))
        if not self.hold.holds(now):
            self.doubts.step(out)
            for node, runs in self.book.grants(now).items():
                out.append(Send(node, m.Grant(self.digest, self._epoch, tuple(runs))))
        delta = self.roster.flush(now)
        if delta is not None:
            out.extend(Send(node, delta) for node in self.roster.needy())

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next."""
        times = [
            self.book.next_wakeup(), self.audit.next_wakeup(), self.roster.flush_at(),
            self.out_of_reach.next_wakeup(),
        ]  # fmt: skip
        if self.hold.waiting and self.book.free and len(self.book.readers):
            times.append(self.hold.until)
        return min((t for t in times if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.roster.check()
        self.book.check()
        self.book.wrong.check()
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
        have = bitset.full(roster.run_count)
        if not said.complete:
            have = bitset.from_bytes(said.have, roster.run_count) if said.have else 0
            self.hold.knows(said.known, present, now)
        reading = self._runs(said.leases[:MAX_LISTED_LEASES])
        roster.enter(member)
        self.ledger.told(node, said)
        roster.pulls(node, pulled=said.pulled)
        if roster.have[node] & ~have:
            self.audit.suspect(now)
        self._claim(node, have, now, out)
        self.book.renew(node, reading, now)
        credit = 0 if said.complete else said.credit
        self._want(node, credit, self._bits(said.wanted), out, now)
        self.audit.answered(node)

    def _claim(self, node: int, have: int, now: float, out: list[Output]) -> None:
        fresh = self.roster.update(node, have)
        if self.roster.is_shunned(node):
            self.book.kept(node, have, now)
        if fresh:
            if self.book.wrong.doubted:
                self.doubts.claimed(node, fresh, now, out)
            self.out_of_reach.has_news(node)
            for reader, runs in self.book.claim(node, fresh, now).items():
                out.append(Send(reader, m.Revoke(self.digest, tuple(runs))))

    def _runs(self, numbers: Iterable[int]) -> int:
        return m.run_bits(numbers, self.roster.run_count)

    def _bits(self, wanted: bytes) -> int:
        return bitset.from_bytes(wanted, self.roster.run_count) if wanted else ALL

    def _want(self, node: int, credit: int, wanted: int, out: list[Output], now: float) -> None:
        if credit > 0 and not self.book.resume(now):
            out.append(Send(node, self.doubts.stop()))
            return
        credit = self.doubts.credit(node, credit, wanted)
        if self.roster.is_shunned(node):
            wanted &= ~self.roster.has(node)
        self.out_of_reach.want(node, credit, wanted)

    def _welcome(self, node: int, out: list[Output]) -> None:
        """The list as of its version, then whom to dial (who joined since comes with the next delta)."""
        out.append(Send(node, self.roster.full_list()))
        neighbours = self.roster.introduce(node, self._neighbours)
        if neighbours is not None:
            out.append(Send(node, neighbours))

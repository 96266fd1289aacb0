"""Finding runs that were read from the origin and that nobody gets any more: their holders are gone, or unreachable.

The tracker hears at heartbeats only what members have, so what a lost node had read may live on in members that didn't
say so yet. Before lost runs are read again, all members are polled. A member that says goodbye may be starting again:
what it had isn't lost before it had time to come back.
"""

from math import inf

from p2pcache.core import bitset
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.readers import stands_aside
from p2pcache.core.leases.settings import AWAITED_BYTES, BATCH_S, LEFT_BYTES, SEARCH_S_PER_MEMBER
from p2pcache.core.membership.roster import Roster
from p2pcache.ids import NodeId, RunSet


class LostRuns:
    """The search for lost runs in one swarm."""

    def __init__(self, roster: Roster, book: LeaseBook, answer_s: float, back_s: float) -> None:
        """No run is missed.

        A member that hasn't answered a poll after `answer_s` seconds may be gone itself. One that said goodbye has
        `back_s` to come back.
        """
        self.due = inf  # when `step` has something to do; inf: no search is due or runs
        self.polls = 0  # for metrics
        self._roster = roster
        self._book = book
        self._answer_s = answer_s
        self._back_s = back_s
        # Until when each member that left may be back, with what.
        self._left: dict[NodeId, tuple[float, RunSet]] = {}
        self._most_left = AWAITED_BYTES // (roster.run_count // 8 + LEFT_BYTES)
        self._free_at = -inf  # when the next search may begin
        self._polling = False
        self._waiting: set[NodeId] = set()  # members that were polled

    @property
    def covered(self) -> RunSet:
        """Runs that somebody gives. Those of members that can't be dialled count while no other wants them."""
        unwanted = all(map(stands_aside, self._book.readers.working.values()))
        return self._roster.had_by(lambda one: one.counts or (unwanted and not one.void))

    def suspect(self, now: float) -> None:
        """A holder left or is unreachable, or a lease ended unclear: search whether every done run has a holder."""
        if not self._polling:  # else the answers lead to a search
            self.due = min(self.due, max(now + BATCH_S, self._free_at))

    def on_goodbye(self, node: NodeId, have: RunSet, now: float) -> None:
        """A member left in order, and has these runs."""
        if have and len(self._left) < self._most_left:
            self._left[node] = now + self._back_s, have

    def on_arrival(self, node: NodeId, now: float) -> None:
        """A member came. If it is back, its own word counts from now on."""
        if self._left.pop(node, None):
            self.suspect(now)

    def on_answer(self, node: NodeId) -> None:
        """A member said what it has, or is gone."""
        self._waiting.discard(node)
        if self._polling and not self._waiting:
            self.due = -inf

    def step(self, now: float) -> list[NodeId]:
        """Do what is due, and free runs that nobody gets; returns members to send a `Poll` to."""
        self._left = {node: left for node, left in self._left.items() if left[0] > now}
        lost = self._book.done & ~self.covered
        if lost:
            lost &= ~bitset.union(have for _, have in self._left.values())
        members = self._roster.members
        if lost and not self._polling:
            self._waiting = {node for node in self._roster.needy() if members[node].counts}
        self._free_at = now + SEARCH_S_PER_MEMBER * len(members)
        self._polling = bool(self._waiting) and not self._polling
        if self._polling:
            self.due = now + self._answer_s
            self.polls += 1
            return sorted(self._waiting)
        self._waiting.clear()
        # Members that nobody reaches may have a run: then a second copy is read by a node that others reach.
        held = self._roster.had_by(lambda one: not one.banned) if lost else 0
        self._book.regrant(lost & held)
        self._book.set_free(lost & ~held)
        over_at = min((until for until, _ in self._left.values()), default=inf)
        self.due = max(over_at + BATCH_S, self._free_at)  # those that left together are one search
        return []

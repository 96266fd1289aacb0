"""Finding runs that were read from the origin and that nobody gets any more: their holders are gone, or unreachable.

The tracker hears at heartbeats only what members have, so what a lost node had read may live on in members that didn't
say so yet. Before lost runs are read again, all members are polled.
"""

from math import inf

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.settings import (
    ANSWER_S,
    BATCH_S,
    POLL_INTERVAL_S,
    POLL_INTERVAL_S_PER_MEMBER,
)
from p2pcache.core.membership.roster import Roster
from p2pcache.ids import NodeId, RunSet


class LostRuns:
    """The search for lost runs in one swarm.

    Invariant: members are waited for only while `due` is the end of a poll.
    """

    def __init__(self, roster: Roster, book: LeaseBook) -> None:
        """No run is missed; the swarm's members and leases."""
        self.due = inf  # when `step` has something to do; inf: no search is due or runs
        self.polls = 0  # for metrics
        self._roster = roster
        self._book = book
        self._search_at = inf
        self._next_poll = -inf
        self._polling = False
        self._waiting: set[NodeId] = set()  # members that were polled

    @property
    def covered(self) -> RunSet:
        """Runs that somebody gives. Those of members that can't be dialled count while no other wants them."""
        undialled_count = not self._book.readers.fit
        return self._roster.had_by(lambda one: one.counts or (undialled_count and not one.void))

    def suspect(self, now: float) -> None:
        """A holder left or is unreachable, or a lease ended unclear: search whether every done run has a holder."""
        self._search_at = min(self._search_at, now + BATCH_S)
        if not self._polling:
            self.due = max(self._search_at, self._next_poll)

    def on_answer(self, node: NodeId) -> None:
        """A member said what it has, or is gone."""
        self._waiting.discard(node)
        if self._polling and not self._waiting:
            self.due = -inf

    def step(self, now: float) -> list[NodeId]:
        """Do what is due, and free runs that nobody gets.

        Returns:
            Members to send a `Poll` to.
        """
        lost = self._book.done & ~self.covered
        if self._polling:
            self._polling = False
            self._waiting.clear()
            self._free(lost, now)
        elif lost:
            members = self._roster.members
            self._waiting = {node for node in self._roster.needy() if members[node].counts}
            if self._waiting:
                interval_s = max(POLL_INTERVAL_S, POLL_INTERVAL_S_PER_MEMBER * len(members))
                self._next_poll, self._search_at = now + interval_s, inf
                self._polling, self.due = True, now + ANSWER_S
                self.polls += 1
                return sorted(self._waiting)
            self._free(lost, now)
        if self._search_at <= now:
            self._search_at = inf
        self.due = max(self._search_at, self._next_poll)
        return []

    def check(self) -> None:
        """Assert the invariant."""
        assert self._polling or not self._waiting

    def _free(self, lost: RunSet, now: float) -> None:
        """Have runs read again; those that a member has all the same are granted to nodes that others reach."""
        held = self._roster.had_by(lambda one: not one.banned) if lost else 0
        self._book.regrant(lost & held, now)
        self._book.set_free(lost & ~held, now)

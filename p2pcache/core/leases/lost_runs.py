"""Finding runs that were read from the origin but whose holders are gone.

The tracker hears at heartbeats only what members have, so what a lost node had read may live on in members that didn't
say so yet. Before lost runs are read again, all members are polled.
"""

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.settings import (
    ANSWER_S,
    BATCH_S,
    POLL_INTERVAL_S,
    POLL_INTERVAL_S_PER_MEMBER,
)
from p2pcache.core.membership.member_record import Standing
from p2pcache.core.membership.roster import Roster
from p2pcache.ids import NodeId


class LostRuns:
    """The search for lost runs in one swarm. Idle until `suspect` is called.

    Invariant: `_waiting` is empty unless a poll runs (`_deadline` is set); `busy` says whether a search is due or runs.
    """

    def __init__(self) -> None:
        """No run is missed."""
        self.busy = False
        self.polls = 0  # for metrics
        self._search_at: float | None = None  # when to search for done runs without a holder
        self._next_poll = float("-inf")
        self._waiting: set[NodeId] = set()
        self._deadline: float | None = None

    def suspect(self, now: float) -> None:
        """A holder left, or a lease ended unclear: search whether every done run has a holder."""
        if self._search_at is None:
            self._search_at = now + BATCH_S
            self.busy = True

    def on_answer(self, node: NodeId) -> None:
        """A member said what it has, or is gone."""
        self._waiting.discard(node)

    def step(self, roster: Roster, book: LeaseBook, now: float) -> list[NodeId]:
        """Do what is due, and free runs that no member has.

        Returns:
            Members to send a `Poll` to.
        """
        polled = self._step(roster, book, now)
        self.busy = self._search_at is not None or self._deadline is not None
        return polled

    def _step(self, roster: Roster, book: LeaseBook, now: float) -> list[NodeId]:
        if self._deadline is not None:
            if self._waiting and now < self._deadline:
                return []
            self._deadline = None
            self._waiting.clear()
            book.set_free(book.done & ~roster.covered(), now)
        if self._search_at is None or now < max(self._search_at, self._next_poll):
            return []
        self._search_at = None
        lost = book.done & ~roster.covered()
        if not lost:
            return []
        ordinary = Standing.ORDINARY
        self._waiting = {n for n in roster.needy() if roster.members[n].standing is ordinary}
        if not self._waiting:
            book.set_free(lost, now)
            return []
        interval_s = max(POLL_INTERVAL_S, POLL_INTERVAL_S_PER_MEMBER * len(roster))
        self._next_poll = now + interval_s
        self._deadline = now + ANSWER_S
        self.polls += 1
        return sorted(self._waiting)

    def next_wakeup(self) -> float | None:
        """When `step` has something to do."""
        if self._deadline is not None:
            return self._deadline if self._waiting else float("-inf")
        return None if self._search_at is None else max(self._search_at, self._next_poll)

    def check(self) -> None:
        """Assert the invariant."""
        assert self._deadline is not None or not self._waiting
        assert self.busy == (self._search_at is not None or self._deadline is not None)

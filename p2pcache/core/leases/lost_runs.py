"""Finding runs that were read from the origin but whose holders are gone. Pure.

The tracker hears of have-sets at heartbeats only, so what a lost node had read may well live on
in others that didn't say so yet. Before such runs are read again, everybody is asked.
"""

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.membership.roster import Roster

ANSWER_S = 5.0  # a heartbeat: who hasn't answered by then may be gone itself
BATCH_S = 0.05  # several nodes that go at once (a rack) are one question
INTERVAL_S = 1.0  # between polls of a small swarm ...
INTERVAL_S_PER_MEMBER = 0.001  # ... and of a large one: each poll costs an answer per member


class Audit:
    """The check of one swarm. Idle until `suspect` is called.

    Invariant: `_waiting` is empty unless a poll runs (`_deadline` is set).
    """

    def __init__(self) -> None:
        self.polls = 0  # for metrics
        self._look_at: float | None = None  # when to look whether a done run has no holder
        self._next_poll = float("-inf")
        self._waiting: set[int] = set()
        self._deadline: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a check is due or under way."""
        return self._look_at is not None or self._deadline is not None

    def suspect(self, now: float) -> None:
        """A holder left, or a lease ended unclear: look whether every done run has a holder."""
        if self._look_at is None:
            self._look_at = now + BATCH_S

    def answered(self, node: int) -> None:
        """The node said what it has, or is gone."""
        self._waiting.discard(node)

    def step(self, roster: Roster, book: LeaseBook, now: float) -> list[int]:
        """Do what is due; frees runs that nobody has.

        Returns:
            Members to send a `Poll` to.
        """
        if self._deadline is not None:
            if self._waiting and now < self._deadline:
                return []
            self._deadline = None
            self._waiting.clear()
            book.release(book.done & ~roster.covered(), now)
        if self._look_at is None or now < max(self._look_at, self._next_poll):
            return []
        self._look_at = None
        lost = book.done & ~roster.covered()
        if not lost:
            return []
        self._waiting = {
            n for n in roster.needy() if not (roster.is_shunned(n) or n in roster.void)
        }
        if not self._waiting:
            book.release(lost, now)
            return []
        self._next_poll = now + max(INTERVAL_S, INTERVAL_S_PER_MEMBER * len(roster))
        self._deadline = now + ANSWER_S
        self.polls += 1
        return sorted(self._waiting)

    def next_wakeup(self) -> float | None:
        """When `step` has something to do."""
        if self._deadline is not None:
            return self._deadline if self._waiting else float("-inf")
        return None if self._look_at is None else max(self._look_at, self._next_poll)

    def check(self) -> None:
        """Assert the invariant."""
        assert self._deadline is not None or not self._waiting

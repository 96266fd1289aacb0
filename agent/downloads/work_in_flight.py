"""Requests to peers and reads of the origin that one model's scheduler has begun and that haven't ended."""

import logging
import threading
from collections.abc import Callable

from p2pcache.agent.context import AgentContext
from p2pcache.agent.origin_reads import LeasedRun
from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import NodeId, RunIndex, RunSet
from p2pcache.io.models.model_chunks import ModelStore

log = logging.getLogger(__name__)

ReadEnded = Callable[[int | None, RunIndex, Outcome, float], None]
"""Called with the scheduler's number of a read (None: that scheduler is gone), its run, its outcome, and the seconds
from its first byte to its end (0: none came)."""


class WorkInFlight:
    """Begins, cancels and ends requests and reads.

    Numbers on the wire outlive a scheduler, so the late end of a request never hits one of the next scheduler.
    """

    def __init__(self, context: AgentContext, store: ModelStore, on_read_ended: ReadEnded) -> None:
        self._context = context
        self._store = store
        self._layout: Layout = store.layout
        self._digest = store.digest
        self._on_read_ended = on_read_ended
        self._wire_of: dict[int, int] = {}  # wire number by the scheduler's number of the request
        self._requests: dict[int, tuple[int, NodeId]] = {}  # (its number, peer) by wire number
        self._next_wire = 1
        self._begun: list[LeasedRun] = []  # runs of the request that was begun last
        self._reads: dict[int, LeasedRun] = {}  # by the scheduler's number

    @property
    def asking(self) -> bool:
        """Whether a request to a peer is in flight."""
        return bool(self._requests)

    @property
    def reading(self) -> bool:
        """Whether a read of the origin is in flight."""
        return bool(self._reads)

    def begin_request(self, command: c.Request) -> None:
        """Ask a peer for a run."""
        wire, self._next_wire = self._next_wire, self._next_wire + 1
        match command:
            case c.Request(number, peer, run, priority):
                self._wire_of[number] = wire
                self._requests[wire] = (number, peer)
                self._context.net.request(self._digest, wire, peer, run, priority)

    def cancel_request(self, number: int) -> None:
        """Cancel a request of the scheduler; it still ends."""
        if number in self._wire_of:
            self._context.net.cancel(self._digest, self._wire_of[number])

    def end_request(self, wire: int) -> tuple[int | None, NodeId]:
        """Note the end of a request; return its scheduler's number (None: that scheduler is gone) and its peer."""
        number, peer = self._requests.pop(wire, (0, 0))
        known = number and self._wire_of.pop(number, None) is not None
        return number if known else None, peer

    def begin_read(self, fetch: int, run: RunIndex, *, joined: bool = False) -> None:
        """Begin to read a run from the origin; `on_read_ended` is called once.

        Args:
            fetch: the scheduler's number.
            run: which.
            joined: in one request with the run of the call just before this one.
        """
        one = self._reads[fetch] = LeasedRun(
            run,
            threading.Event(),
            lambda outcome, flow_s: self._ended(fetch, one, outcome, flow_s),
        )
        if joined:
            # The task of its request hasn't begun: it was made in this same call of the scheduler.
            self._begun.append(one)
            return
        self._begun = [one]
        self._context.tasks.spawn_contained(self._read(self._begun), name=f"fetch-{run}")

    def cancel_read(self, fetch: int) -> None:
        """Cancel a read; it still ends."""
        if fetch in self._reads:
            self._reads[fetch].cancelled.set()

    def cancel_all(self, leased: RunSet, *, finish: bool = False) -> None:
        """Cancel all requests and reads: the scheduler is gone, and hears of none of their ends.

        Args:
            leased: the runs that it had leases of.
            finish: reads of leased runs that have begun go on, and each lease ends with its read.
        """
        begun = bitset.of(one.run for one in self._reads.values() if one.begun)
        going_on = begun & leased if finish else 0
        self.give_back(tuple(bitset.members(leased & ~going_on)))
        for wire in list(self._requests):
            self._context.net.cancel(self._digest, wire)
        self._requests.clear()
        self._wire_of.clear()
        for one in self._reads.values():
            if not going_on >> one.run & 1:
                one.cancelled.set()
        self._reads.clear()

    def give_back(self, leased: tuple[RunIndex, ...]) -> None:
        """Return leases: without that nobody could read these runs before they expire."""
        if leased and (link := self._context.link) is not None:
            link.send(m.LeaseReport(self._digest, link.epoch, returned=leased))

    def _end_lease(self, run: RunIndex, outcome: Outcome, flow_s: float) -> None:
        """A read that went on without its scheduler has ended."""
        if (link := self._context.link) is not None and outcome is Outcome.DONE:
            link.send(m.LeaseReport(self._digest, link.epoch, done=(run,), flow_s=flow_s))
        else:
            self.give_back((run,))

    async def _read(self, runs: list[LeasedRun]) -> None:
        try:
            await self._context.origin.read(self._layout, self._store, runs)
        except Exception:  # a bug must not leave the runs in flight for ever
            numbers = ", ".join(str(one.run) for one in runs)
            log.exception(
                "reading runs %s of blake3:%s from the origin failed", numbers, self._digest
            )
            for one in runs:
                one.end(Outcome.FAILED)

    def _ended(
        self,
        fetch: int,
        one: LeasedRun,
        outcome: Outcome,
        flow_s: float,
    ) -> None:
        ours = self._reads.get(fetch) is one  # a later scheduler uses the same numbers
        if ours:
            del self._reads[fetch]
        elif not one.cancelled.is_set():
            self._end_lease(one.run, outcome, flow_s)
        self._on_read_ended(fetch if ours else None, one.run, outcome, flow_s)

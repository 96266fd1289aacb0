"""One model's part in the cluster on this node: performs what the scheduler decides.

The only code that touches the model's `Scheduler`, always on the loop thread: data plane, tracker link
and origin readers post events; `_post` hands them over and performs the commands that come back.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

from p2pcache.agent.context import Parts
from p2pcache.agent.downloads.give_up import CUT_OFF, disk_failed, hopeless, read_wrong, stopped
from p2pcache.agent.downloads.neighbours import Neighbours
from p2pcache.agent.downloads.recorded_scheduler import end_recording, make_scheduler
from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol import messages as m
from p2pcache.core.scheduler.reports import to_tracker, wish
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.errors import P2PCacheError
from p2pcache.io.models.model_chunks import ModelStore

log = logging.getLogger(__name__)

TIMER_S = 0.001  # uvloop rounds to whole milliseconds; a tick that comes early comes again at once
REDIAL_S = 5.0  # neighbours that were lost are tried again so often while we want something


class Swarm:
    """A model that this node has or wants. Implements `SwarmPort` for the data plane.

    While `scheduler` is None the swarm is paused: it serves what it has and asks for nothing.
    """

    def __init__(self, parts: Parts, store: ModelStore, settings: SwarmSettings) -> None:
        self.layout: Layout = store.layout
        self.digest: str = store.digest
        self.store = store
        self.scheduler: Scheduler | None = None
        self.neighbours = Neighbours(parts, store.digest)
        self.traffic = dict.fromkeys(e.Source, 0)
        self.label = ""  # a ref that names it here, for people
        self.pulled = False  # all of it is wanted here now
        self.unflushed_bytes = 0
        self.on_bytes: Callable[[e.Source, int, float, int], None] = lambda *_: None
        self.on_finished: Callable[[], None] = lambda: None
        self.on_wanted: Callable[[], None] = lambda: None
        self.on_failed: Callable[[P2PCacheError], None] = lambda error: None
        self._parts = parts
        self._settings = settings
        self._have = store.have_runs()
        # Wire numbers outlive a scheduler, so a late end never hits the next one's request.
        self._wire_of: dict[int, int] = {}  # the scheduler's request -> wire number
        self._asked: dict[int, tuple[int, int]] = {}  # wire number -> (its request, peer)
        self._next_wire = 1
        self._fetches: dict[int, threading.Event] = {}  # fetch -> set to cancel it
        self._events: deque[e.Event] = deque()
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._redial: asyncio.TimerHandle | None = None
        self._wakes_at = self.last_progress = parts.now()
        self._loop = asyncio.get_running_loop()
        store.on_lost = self._lost_on_disk

    # -- life ------------------------------------------------------------------------------------

    def start(self, wanted: int = c.ALL) -> None:
        """Want what is missing of these runs (bits): ask neighbours, take leases."""
        if self.scheduler is not None:
            return
        self._have = self.store.have_runs()
        parts = self._parts
        self.last_progress = parts.now()
        self.scheduler = make_scheduler(parts, self.layout, self._have, self._settings)
        if wanted != c.ALL:  # first, before anything else is asked for
            self.post(e.Wanted(wanted))
        for node, have in self.neighbours.joined.items():
            self.post(e.PeerJoined(node, have, parts.net.rtt_s(node)))
        if self.neighbours.members:
            self.post(self.neighbours.event())
        if parts.link is None:
            self.post(e.Members((parts.node,)))
        elif parts.link.connected:
            self.post(e.TrackerUp(parts.link.epoch))
            parts.link.send(m.Enter(self.state()))
        self.post(e.Tick())
        self._redial_later()

    def pause(self) -> None:
        """Want nothing more; what we have is still served."""
        end_recording(self.scheduler)
        self.scheduler = None
        self._events.clear()
        for wire in list(self._asked):
            self._parts.net.cancel(self.digest, wire)
        self._asked.clear()
        self._wire_of.clear()
        for cancelled in self._fetches.values():
            cancelled.set()
        self._fetches.clear()
        for timer in (self._timer, self._redial):
            if timer is not None:
                timer.cancel()
        self._timer = self._redial = None
        self.tell_tracker()

    @property
    def complete(self) -> bool:
        """Every run is proved."""
        return self._have == bitset.full(self.layout.run_count)

    @property
    def idle(self) -> bool:
        """Nothing that is wanted is missing."""
        return self.scheduler is not None and not self.scheduler.wanted & ~self._have

    @property
    def bytes_done(self) -> int:
        """Bytes of proved runs."""
        if self.complete:
            return self.layout.total_bytes
        return sum(self.layout.run_bytes[run] for run in bitset.members(self._have))

    @property
    def peer_count(self) -> int:
        """Neighbours that we can request from."""
        return len(self.neighbours.joined)

    @property
    def replicated(self) -> bool:
        """Whether each run that we have is known to lie on some other node too."""
        return self._have & ~self.neighbours.elsewhere() == 0

    def trouble(self, now: float) -> P2PCacheError | None:
        """Why this pull will not end, if nothing has come for too long and nothing is on its way."""
        if self.idle:
            self.last_progress = now
        link = self._parts.link
        if link is not None and link.refusal is not None and not self.neighbours.members:
            return link.refusal  # it never was a member, and there is nobody else to turn to
        return hopeless(
            now - self.last_progress, link, self._parts.origin.why(self.digest), asking=bool(self._asked),
            reading=bool(self._fetches), others=bool(self.neighbours.members.keys() - {self._parts.node}),
        )  # fmt: skip

    def state(self, *, announcing: bool = False) -> m.SwarmState:
        """What the tracker must know of us in this swarm; a fresh one also whom we knew in it."""
        count = self.layout.run_count
        have = b"" if self.complete else bitset.to_bytes(self._have, count)
        leases = self.scheduler.origin_runs if self.scheduler is not None else 0
        return m.SwarmState(
            self.digest, count, have, complete=self.complete,
            credit=self.scheduler.credit if self.scheduler is not None else 0,
            leases=tuple(bitset.members(leases)), known=self.neighbours.ids if announcing else (),
            label=self.label, total_bytes=self.layout.total_bytes, pulled=self.pulled,
            taken=tuple(self.traffic[s] for s in (e.Source.PEER, e.Source.ORIGIN, e.Source.LOCAL)),
            wanted=b"" if self.scheduler is None else wish(self.scheduler.wanted, count),
        )  # fmt: skip

    def proved(self, runs: int, source: e.Source) -> None:
        """Runs became `have` without a command (local copies, a push)."""
        fresh = runs & ~self._have
        self._took(source, sum(self.layout.run_bytes[run] for run in bitset.members(fresh)))
        if self.scheduler is not None:
            self.post(e.RunsProved(fresh, source))
        else:
            self._have |= fresh
            self._parts.net.announce(self.digest, fresh)
            if fresh and self.complete:
                self.tell_tracker()  # else it would have the next node read the origin for it

    def lost(self) -> None:
        """The store found bad bytes: believe only what it still calls proved."""
        before, self._have = self._have, self.store.have_runs()
        gone = before & ~self._have
        if self.scheduler is not None and gone:
            self.post(e.RunsLost(gone))
        if gone:
            self.tell_tracker()  # or others would be sent here for it

    def _lost_on_disk(self, _runs: int) -> None:
        # The store tells from whichever thread found out, also while the agent ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.lost)

    # -- from the tracker --------------------------------------------------------------------------

    def tracker_up(self, epoch: int) -> None:
        """Member again; our state went along with the announcement."""
        self.post(e.TrackerUp(epoch))

    def tracker_down(self) -> None:
        """The peers go on; leases in hand are still ours until they expire."""
        self.post(e.TrackerDown())

    def tracker_said(self, message: m.ToAgent) -> None:
        """A message about this swarm."""
        match message:
            case m.Swarm():
                self.post(self.neighbours.changed(message))
                if self.wants():
                    self.neighbours.dial_missing()
            case m.Grant():
                self.post(e.LeaseGranted(self._runs(message.runs), message.epoch))
                if self.scheduler is None and (link := self._parts.link) is not None:
                    link.send(m.LeaseReport(self.digest, message.epoch, returned=message.runs))
            case m.Revoke():
                self.post(e.LeaseRevoked(self._runs(message.runs)))
            case m.Stop():
                seen = self._parts.origin.wrong(self.digest, message.run)
                self.on_failed(stopped(message, seen))
            case m.Poll():
                self.tell_tracker()
            case _:
                log.debug("ignored %s", type(message).__name__)

    def _redial_later(self) -> None:
        if self.wants():
            self.neighbours.dial_missing()
            self._redial = asyncio.get_running_loop().call_later(REDIAL_S, self._redial_later)

    def tell_tracker(self) -> None:
        """Say at once what the next heartbeat would."""
        if (link := self._parts.link) is not None:
            link.send(m.Heartbeat(load=self._parts.net.load, swarms=(self.state(),)))

    def _runs(self, runs: tuple[int, ...]) -> int:
        return bitset.of(run for run in runs if 0 <= run < self.layout.run_count)

    # -- from the data plane (SwarmPort) -----------------------------------------------------------

    def have_runs(self) -> int:
        """Bits of proved runs."""
        return self._have

    def wants(self) -> bool:
        """Whether we ask others for chunks."""
        return self.scheduler is not None and not self.complete

    def pace_s(self) -> float:
        """Seconds from one new run to the next; 0: not known."""
        return self.scheduler.pace_s if self.scheduler is not None else 0.0

    def peer_joined(self, node: int, have: int, load: int) -> None:
        """We may request from this neighbour."""
        self.neighbours.joined[node] = have
        self.neighbours.has(node, have)
        self.post(e.PeerJoined(node, have, self._parts.net.rtt_s(node)))

    def peer_left(self, node: int) -> None:
        """We may no longer."""
        self.neighbours.joined.pop(node, None)
        self.post(e.PeerLeft(node))

    def peer_has(self, node: int, runs: int, load: int) -> None:
        """A neighbour proved runs."""
        self.neighbours.has(node, runs)
        if node in self.neighbours.joined:
            self.post(e.PeerHas(node, runs, load))

    def request_ended(
        self, request: int, outcome: e.Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        """The one end of a request."""
        number, peer = self._asked.pop(request, (0, 0))
        self._took(e.Source.PEER, nbytes, peer)
        self._parts.tally.requests[outcome] += 1
        if number and self._wire_of.pop(number, None) is not None:
            if outcome is e.Outcome.FAILED:
                self.on_failed(disk_failed(self._parts.store))
            self.post(e.RequestEnded(number, outcome, waited_s))

    def dial_failed(self, node: int) -> None:
        """A neighbour can't be reached."""
        self.post(e.DialFailed(node))

    def inbound(self, node: int, address: str, wants: bool, have: int) -> None:  # noqa: FBT001
        """Somebody joined us: what it has is worth knowing, and asking for."""
        self.neighbours.met(node, address, have)
        if self.wants() and node not in self.neighbours.joined:
            self._parts.net.dial(self.digest, node, address)

    # -- the pump ----------------------------------------------------------------------------------

    def post(self, event: e.Event) -> None:
        """Tell the scheduler what happened, or is wanted; performing may post more, so this never recurses."""
        self._events.append(event)
        if self._performing:
            return
        self._performing = True
        try:
            while self._events and self.scheduler is not None:
                commands = self.scheduler.handle(self._events.popleft(), self._parts.now())
                self._have = self.scheduler.have
                for command in commands:
                    self._perform(command)
        finally:
            self._performing = False
        self._events.clear()
        self._arm()

    def _arm(self) -> None:
        wakeup = self.scheduler.next_wakeup() if self.scheduler is not None else None
        if self._timer is not None:
            if wakeup is not None and self._wakes_at <= wakeup:
                return  # too early a tick does no harm; a timer per event was 8 % of Python's time
            self._timer.cancel()
            self._timer = None
        if wakeup is not None:
            self._timer = asyncio.get_running_loop().call_at(wakeup + TIMER_S, self._wake)
            self._wakes_at = wakeup  # uvloop's handles don't tell

    def _wake(self) -> None:
        self._timer = None
        self.post(e.Tick())

    def _perform(self, command: c.Command) -> None:
        net = self._parts.net
        match command:
            case c.Request(number, peer, run, turn):
                wire, self._next_wire = self._next_wire, self._next_wire + 1
                self._wire_of[number] = wire
                self._asked[wire] = (number, peer)
                net.request(self.digest, wire, peer, run, turn)
            case c.Cancel(number):
                if number in self._wire_of:
                    net.cancel(self.digest, self._wire_of[number])
            case c.Announce(runs):
                net.announce(self.digest, runs)
            case c.Fetch(fetch, run):
                cancelled = self._fetches[fetch] = threading.Event()
                reading = self._fetch(fetch, run, cancelled)
                self._parts.tasks.spawn_contained(reading, name=f"fetch-{run}")
            case c.CancelFetch(fetch):
                if fetch in self._fetches:
                    self._fetches[fetch].set()
            case c.Dial(peer):
                if not self.neighbours.dial(peer):
                    self.post(e.DialFailed(peer))
            case c.Finished():
                self.tell_tracker()
                self.on_finished()
            case c.WantedDone():
                self.on_wanted()
            case _:
                self._notify(command)

    def _notify(self, command: c.Command) -> None:
        match command:
            case c.Blame(peer):
                self._parts.net.drop(peer, "sent bytes that don't match the manifest")
            case c.CutOff():
                log.warning("model %s: %s", self.label or self.digest, CUT_OFF)
            case c.OriginCorrupt(run):
                seen = self._parts.origin.wrong(self.digest, run)
                self.on_failed(read_wrong(run, seen, self._parts.link))
        link, count = self._parts.link, self.layout.run_count
        if link is not None and (said := to_tracker(command, self.digest, link.epoch, count)):
            link.send(said)

    async def _fetch(self, fetch: int, run: int, cancelled: threading.Event) -> None:
        scheduler = self.scheduler
        outcome = e.Outcome.FAILED
        try:
            outcome = await self._parts.origin.fetch(self.layout, self.store, run, cancelled)
        except Exception:  # a bug must end the fetch, not leave the run in flight for ever
            log.exception("reading run %d of blake3:%s from the origin failed", run, self.digest)
        if outcome is e.Outcome.DONE:
            self._took(e.Source.ORIGIN, self.layout.run_bytes[run])
        self._parts.tally.fetches[outcome] += 1
        if self._fetches.get(fetch) is cancelled:  # a later scheduler may count from one again
            del self._fetches[fetch]
        if outcome is e.Outcome.FAILED:
            self.on_failed(disk_failed(self._parts.store))
        if self.scheduler is scheduler:
            self.post(e.FetchEnded(fetch, outcome))

    def _took(self, source: e.Source, nbytes: int, peer: int = 0) -> None:
        self.traffic[source] += nbytes
        self._parts.tally.taken[source] += nbytes
        if nbytes and source is not e.Source.LOCAL:
            self.unflushed_bytes += nbytes
            self.last_progress = now = self._parts.now()
            self.on_bytes(source, nbytes, now, peer)

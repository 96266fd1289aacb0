"""The driver of one model's scheduler: hands it events, and performs its commands.

No other code touches the model's `Scheduler`. Data plane, tracker link and reads of the origin post events on the
loop's thread; `post` hands them over and performs the commands that come back.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.give_up import CUT_OFF, disk_failed, hopeless, read_wrong, stopped
from p2pcache.agent.downloads.neighbours import Neighbours
from p2pcache.agent.downloads.recorded_scheduler import end_recording, make_scheduler
from p2pcache.agent.downloads.work_in_flight import WorkInFlight
from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol import messages as m
from p2pcache.core.scheduler.reports import to_tracker, wish
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.errors import P2PCacheError
from p2pcache.ids import NodeId, RunIndex, RunSet
from p2pcache.io.models.model_chunks import ModelStore

log = logging.getLogger(__name__)

# Added to a deadline: uvloop rounds to milliseconds, and an early tick would be repeated.
TIMER_S = 0.001
REDIAL_S = 5.0  # between two dials of a lost neighbour, while runs are missing


class SwarmDriver:
    """A model that this node has or wants. Implements `SwarmPort` for the data plane.

    While `scheduler` is None the swarm is paused: it serves what it has and asks for nothing.
    """

    def __init__(self, context: AgentContext, store: ModelStore, settings: SwarmSettings) -> None:
        self.layout: Layout = store.layout
        self.digest: str = store.digest
        self.store = store
        self.scheduler: Scheduler | None = None
        self.neighbours = Neighbours(context, store.digest)
        self.traffic = dict.fromkeys(e.Source, 0)
        self.label = ""  # a ref that names it here, for people
        self.pulled = False  # a client wants all of it now
        self.reads_storage = True  # else another site brings what no node of this cluster has
        self.unflushed_bytes = 0
        self.on_bytes: Callable[[e.Source, int, float, int], None] = lambda *_: None
        self.on_finished: Callable[[], None] = lambda: None
        self.on_wanted: Callable[[], None] = lambda: None
        self.on_failed: Callable[[P2PCacheError], None] = lambda error: None
        self._context = context
        self._settings = settings
        self._have = store.have_runs()
        self._counted: RunSet = 0  # the runs whose bytes are in `_bytes_done`
        self._bytes_done = 0
        self._work = WorkInFlight(context, store, self._read_ended)
        self._events: deque[e.Event] = deque()
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._redial: asyncio.TimerHandle | None = None
        self._wakes_at = self.last_progress = context.now()
        self._loop = asyncio.get_running_loop()
        store.on_lost = self._lost_on_disk

    # -- life --------------------------------------------------------------------------------------

    def start(self, wanted: RunSet = c.ALL) -> None:
        """Get those of these runs that are missing: ask neighbours, take leases."""
        if self.scheduler is not None:
            return
        context, self._have = self._context, self.store.have_runs()
        self.last_progress = context.now()
        reads = self.reads_storage
        settings = self._settings if reads else replace(self._settings, origin_fetches=0)
        self.scheduler = make_scheduler(context, self.layout, self._have, settings)
        if wanted != c.ALL:  # before any event that could cause a request
            self.post(e.Wanted(wanted))
        heard = context.net.heard(self.digest)
        for node in self.neighbours.joined:
            self.post(e.PeerJoined(node, heard.get(node, 0), context.net.rtt_s(node)))
        if self.neighbours.dialled:
            self.post(e.Reachable())
        if self.neighbours.members:
            self.post(self.neighbours.members_event())
        if context.link is None:
            self.post(e.Members((context.node,)))
        elif context.link.connected:
            self.post(e.TrackerUp(context.link.epoch))
            context.told.enter(self)
        self.post(e.Tick())
        self._redial_later()

    def pause(self, *, finish: bool = False) -> None:
        """Ask for no more runs; proved runs are still served. `finish`: reads by leases that have begun go on."""
        leased = 0 if self.scheduler is None else self.scheduler.origin_runs
        if self.scheduler is not None and (untold := self.scheduler.untold):
            self._context.net.announce(self.digest, untold)
        end_recording(self.scheduler)
        self.scheduler = None
        self._events.clear()
        self._work.cancel_all(leased, finish=finish)
        for timer in filter(None, (self._timer, self._redial)):
            timer.cancel()
        self._timer = self._redial = None
        self.tell_tracker()

    @property
    def complete(self) -> bool:
        """Whether every run is proved."""
        return self._have == bitset.full(self.layout.run_count)

    @property
    def idle(self) -> bool:
        """Whether no wanted run is missing."""
        return self.scheduler is not None and not self.needed

    @property
    def needed(self) -> RunSet:
        """Wanted runs that are missing; none while it is paused."""
        return 0 if self.scheduler is None else self.scheduler.wanted & ~self._have

    def on_hope(self) -> None:
        """Bytes are on their way, though no chunk is whole yet."""
        self.last_progress = self._context.now()

    @property
    def bytes_done(self) -> int:
        """Bytes of proved runs."""
        # Asked for many times a second: only what changed since is added up.
        fresh, gone = self._have & ~self._counted, self._counted & ~self._have
        self._counted = self._have
        self._bytes_done += self._bytes(fresh) - self._bytes(gone)
        return self._bytes_done

    @property
    def peer_count(self) -> int:
        """Neighbours that we can request from."""
        return len(self.neighbours.joined)

    @property
    def replicated(self) -> bool:
        """Whether each run that this node has is known to lie on another node, too."""
        return self._have & ~self.neighbours.runs_elsewhere() == 0

    def why_give_up(self, now: float) -> P2PCacheError | None:
        """The error to end this download with, if no byte has come for too long; None while there is hope."""
        if self.idle:
            self.last_progress = now
        link = self._context.link
        if link is not None and link.refusal is not None and not self.neighbours.members:
            return link.refusal  # this node never was a member, so it knows no peer
        storage = self._context.origin.last_error(self.digest) if self.reads_storage else None
        return hopeless(
            now - self.last_progress, link, storage, asking=self._work.asking,
            reading=self._work.reading, others=bool(self.neighbours.members.keys() - {self._context.node}),
        )  # fmt: skip

    def state(self, *, announcing: bool = False) -> m.SwarmState:
        """This node's state in the swarm, for the tracker; `announcing`: with the members that it knows."""
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

    def on_proved(self, runs: RunSet, source: e.Source, nbytes: int | None = None) -> None:
        """Runs were proved without a command of the scheduler; `nbytes`: that came (None: all of the runs)."""
        fresh = runs & ~self._have
        self._count(source, self._bytes(fresh) if nbytes is None else nbytes)
        if self.scheduler is not None:
            self.post(e.RunsProved(fresh, source))
        else:
            self._have |= fresh
            self._context.net.announce(self.digest, fresh)
            if fresh and self.complete:
                self.tell_tracker()  # the tracker grants leases for runs that it thinks missing

    def on_lost(self) -> None:
        """The store found bad bytes: take over its set of proved runs."""
        before, self._have = self._have, self.store.have_runs()
        gone = before & ~self._have
        if self.scheduler is not None and gone:
            self.post(e.RunsLost(gone))
        if gone:
            self.tell_tracker()  # the tracker sends nodes to those that have a run

    def _lost_on_disk(self, _runs: RunSet) -> None:
        # The store calls from any thread, also while the agent stops.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.on_lost)

    # -- from the tracker --------------------------------------------------------------------------

    def tracker_up(self, epoch: int) -> None:
        """This node is a member again; the announcement contained this swarm's state."""
        self.post(e.TrackerUp(epoch))

    def tracker_down(self, *, unheard: bool = False) -> None:
        """The tracker is lost, silent, or away since before this pull. Peers go on, leases last until they expire."""
        self.post(e.TrackerDown(unheard))

    def tracker_said(self, message: m.ToAgent) -> None:
        """A message about this swarm."""
        match message:
            case m.Swarm():
                self.post(self.neighbours.on_members(message))
                if self.wants():
                    self.neighbours.dial_missing()
            case m.Grant():
                self.post(e.LeaseGranted(self._runs(message.runs), message.in_flight))
                if self.scheduler is None:
                    self._work.give_back(message.runs)
            case m.Revoke():
                self.post(e.LeaseRevoked(self._runs(message.runs)))
            case m.Stop():
                seen = self._context.origin.wrong_read(self.digest, message.run)
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
        """Send this swarm's state now, not with the next heartbeat."""
        self._context.told.beat(self, self._context.sign_of_life())

    def show_as(self, label: str) -> None:
        """Call it so from now on, and let the tracker know."""
        self.label = label
        self.tell_tracker()

    def _bytes(self, runs: RunSet) -> int:
        return sum(map(self.layout.run_bytes.__getitem__, bitset.members(runs)))

    def _runs(self, runs: tuple[RunIndex, ...]) -> RunSet:
        return bitset.of(run for run in runs if 0 <= run < self.layout.run_count)

    # -- from the data plane (SwarmPort) -----------------------------------------------------------

    def have_runs(self) -> RunSet:
        """Proved runs."""
        return self._have

    def wants(self) -> bool:
        """Whether this node asks others for runs."""
        return self.scheduler is not None and not self.complete

    def awaited(self) -> tuple[int, float]:
        """How many runs this node waits for, and seconds from one run to the next; 0: unknown."""
        return (self.needed.bit_count(), self.scheduler.pace_s) if self.scheduler else (0, 0.0)

    def peer_joined(self, node: NodeId, have: RunSet, load: int) -> None:
        """We may request from this neighbour now."""
        self.neighbours.on_joined(node)
        self.post(e.PeerJoined(node, have, self._context.net.rtt_s(node)))

    def peer_left(self, node: NodeId) -> None:
        """We may request from this neighbour no more."""
        self.neighbours.joined.discard(node)
        self.post(e.PeerLeft(node))

    def peer_has(self, node: NodeId, runs: RunSet, load: int) -> None:
        """A neighbour proved runs."""
        if node in self.neighbours.joined:
            self.post(e.PeerHas(node, runs, load))

    def request_ended(
        self, request: int, outcome: e.Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        """A request ended. Each one ends once."""
        number, peer = self._work.end_request(request)
        self._count(e.Source.PEER, nbytes, peer)
        self._context.tally.requests[outcome] += 1
        if number is not None:
            if outcome is e.Outcome.FAILED:
                self.on_failed(disk_failed(self._context.store))
            self.post(e.RequestEnded(number, outcome, waited_s))

    def dial_failed(self, node: NodeId) -> None:
        """A neighbour can't be reached."""
        self.post(e.DialFailed(node))

    def inbound(self, node: NodeId, address: str, wants: bool) -> None:  # noqa: FBT001
        """A node has dialled us and joined: dial it if we want runs."""
        self.neighbours.on_caller(node, address)
        self.post(e.Reachable())
        if self.wants() and node not in self.neighbours.joined:
            self._context.net.dial_back(self.digest, node, address)

    # -- events in, commands out -------------------------------------------------------------------

    def post(self, event: e.Event) -> None:
        """Hand the scheduler an event and perform its commands. A call from inside a command only queues the event."""
        self._events.append(event)
        if self._performing:
            return
        self._performing = True
        try:
            while self._events and self.scheduler is not None:
                commands = self.scheduler.handle(self._events.popleft(), self._context.now())
                self._have = self.scheduler.have
                for command in commands:
                    self._perform(command)
        finally:
            self._performing = False
        self._events.clear()
        self._arm()

    def _arm(self) -> None:
        wakeup = self.scheduler.next_wakeup() if self.scheduler is not None else None
        if wakeup is None or (self._timer is not None and self._wakes_at <= wakeup):
            return  # an early timer does no harm, and a new one for each event costs much CPU time
        if self._timer is not None:
            self._timer.cancel()
        at = self._context.net.pulse_after(wakeup + TIMER_S)
        self._timer = self._loop.call_at(at, self._wake)
        self._wakes_at = wakeup  # uvloop's handles don't show it

    def _wake(self) -> None:
        self._timer = None
        wakeup = self.scheduler.next_wakeup() if self.scheduler is not None else None
        if wakeup is None or wakeup > self._context.now():
            self._arm()  # what the timer was for has been done, or put off
        else:
            self.post(e.Tick())

    def _perform(self, command: c.Command) -> None:
        match command:
            case c.Request():
                self._work.begin_request(command)
            case c.Cancel(number):
                self._work.cancel_request(number)
            case c.Announce(runs):
                self._context.net.announce(self.digest, runs)
            case c.Fetch(fetch, run, joined):
                self._work.begin_read(fetch, run, joined=joined)
            case c.CancelFetch(fetch):
                self._work.cancel_read(fetch)
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
            case c.CutOff():
                log.warning("model %s: %s", self.label or self.digest, CUT_OFF)
            case c.OriginCorrupt(run):
                seen = self._context.origin.wrong_read(self.digest, run)
                self.on_failed(read_wrong(run, seen, self._context.link))
        link, count = self._context.link, self.layout.run_count
        if link is not None and (said := to_tracker(command, self.digest, link.epoch, count)):
            link.send(said)

    def _read_ended(
        self, fetch: int | None, run: RunIndex, outcome: e.Outcome, flow_s: float
    ) -> None:
        if outcome is e.Outcome.DONE and fetch is None and not self._have >> run & 1:
            self.on_proved(1 << run, e.Source.ORIGIN)  # this scheduler knows nothing of it
        elif outcome is e.Outcome.DONE:
            self._count(e.Source.ORIGIN, self.layout.run_bytes[run])
        self._context.tally.fetches[outcome] += 1
        if outcome is e.Outcome.FAILED:
            self.on_failed(disk_failed(self._context.store))
        if fetch is not None:
            self.post(e.FetchEnded(fetch, outcome, flow_s))

    def _count(self, source: e.Source, nbytes: int, peer: NodeId = 0) -> None:
        self.traffic[source] += nbytes
        self._context.tally.taken[source] += nbytes
        if nbytes and source is not e.Source.LOCAL:
            self.unflushed_bytes += nbytes
            self.last_progress = now = self._context.now()
            self.on_bytes(source, nbytes, now, peer)

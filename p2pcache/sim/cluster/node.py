"""One agent in virtual time: the real scheduler and upload queue, and a driver that pretends.

What an agent's driver, data plane and store do with sockets and disks is done here with messages
and flows: a request reaches the server after the latency, waits in the real `UploadQueue`, flows,
and ends. Nothing in here decides what the daemon leaves to its core.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.core.scheduler import reports
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings, UploadSettings
from p2pcache.core.swarm import commands, events
from p2pcache.core.swarm.events import Outcome
from p2pcache.sim.cluster.agent_link import AgentLink
from p2pcache.sim.cluster.member_list import NOBODY
from p2pcache.sim.cluster.network import Network
from p2pcache.sim.cluster.node_place import Place
from p2pcache.sim.cluster.node_reads import OriginReads
from p2pcache.sim.cluster.node_uploads import Serving
from p2pcache.sim.cluster.world import World

if TYPE_CHECKING:
    from p2pcache.sim.cluster.cluster import Cluster

REDIAL_S = 5.0  # as the agent's driver: neighbours that we lack are dialled again
DIAL_TIMEOUT_S = 3.0  # of a dial into the void
LONG_S = 5.0  # without a run for so long is a pause to be noted


class Pause(NamedTuple):
    """A node that lacked runs got none for long."""

    node: int
    since: float
    until: float


class Neighbour:
    """What a node knows of one that it is or was connected with."""

    __slots__ = ("askable", "have")

    def __init__(self) -> None:
        self.have = 0  # bits that it told us of
        self.askable = False  # we may request from it


class SimNode:
    """One agent that wants the model."""

    def __init__(
        self, cluster: "Cluster", node: int, *, place: Place, rate: float,
        run_bytes: Sequence[int], have: int = 0, settings: SwarmSettings, uploads: UploadSettings, tracker: bool,
        check_every: int = 0,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.world: World = cluster.world
        self.net: Network = cluster.net
        self.node = node
        self.up = cluster.net.link(rate)
        self.down = cluster.net.link(rate)
        self.place = place
        self.way_in = [link for link in (place.way_in, self.down, place.disk) if link is not None]
        self.run_bytes = run_bytes
        self.serving = Serving(self, uploads)
        self.scheduler = Scheduler(
            node=node, run_bytes=run_bytes, have=have, settings=settings,
            seed=cluster.seed * 1_000_003 + node, tracker=tracker, now=self.world.now, story_lines=0,
        )  # fmt: skip
        self.link = AgentLink(self)
        self.alive = True
        self.liar = False  # serves garbage
        self.hidden = False  # nobody can dial it
        self.side = 0  # of a partition; 0: it reaches both
        self.started = self.world.now
        self.progress_at = self.world.now  # when it last got a run, or started
        self.finished: float | None = None
        self.wanted_done: float | None = None  # when what it was told to get was here
        self.askable: dict[int, SimNode] = {}  # whom we may request from
        self._heard: dict[int, Neighbour] = {}  # whom we are or were connected with
        self._audience: list[tuple[SimNode, Neighbour]] = []  # of our news; []: to be made anew
        self.wanted: list[int] = []  # neighbours that the tracker named
        self.members = NOBODY
        self.corrupt = False  # gave up: the origin's bytes are wrong
        self._dialling: set[int] = set()
        # Our requests in flight: server, run, when they were sent.
        self._asked: dict[int, tuple[SimNode, int, float]] = {}
        self.reads = OriginReads(self)
        self._timer = float("inf")
        self._inbox: deque[events.Event] = deque()
        self._busy = False
        self._check_every = check_every
        self._events = 0
        self._perform: dict[type[Any], Callable[[Any], None]] = {
            commands.Request: self._on_request, commands.Cancel: self._on_cancel,
            commands.Announce: self._on_announce, commands.Fetch: self._on_fetch,
            commands.CancelFetch: lambda command: self.reads.cancel(command.fetch),
            commands.LeaseReport: self._on_report, commands.LeaseCredit: self._on_report,
            commands.Stuck: self._on_report, commands.CutOff: self._on_report, commands.Blame: self._on_blame,
            commands.Finished: self._on_finished, commands.Dial: self._on_dial,
            commands.OriginCorrupt: self._on_corrupt, commands.WantedDone: self._on_wanted_done,
        }  # fmt: skip

    @property
    def is_source(self) -> bool:
        """Whether others can get from it what it has."""
        return self.alive and not (self.liar or self.hidden or self.serving.fault)

    # -- the pump -----------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Hand an event to the scheduler and perform what it says."""
        if not self.alive:
            return
        if self._busy:
            self._inbox.append(event)
            return
        self._busy = True
        scheduler, now = self.scheduler, self.world.now
        next_event: events.Event | None = event
        while next_event is not None:
            out = scheduler.handle(next_event, now)
            if self._check_every:
                self._check()
            for command in out:
                self._perform[type(command)](command)
            next_event = self._inbox.popleft() if self._inbox else None
        self._busy = False
        wake = scheduler.next_wakeup()
        if wake is not None and wake < self._timer:
            self.wake(wake)

    def _check(self) -> None:
        self._events += 1
        if self._events % self._check_every == 0:
            self.scheduler.check()
            self.serving.check()

    @property
    def done(self) -> bool:
        """Whether it has all that it was told to get."""
        return self.scheduler.complete or self.finished is not None

    @property
    def have(self) -> int:
        """Bits of the proved runs."""
        return self.scheduler.have

    def wake(self, when: float) -> None:
        """Arm the one timer."""
        self._timer = when
        self.world.at(when, self._tick, when)

    def _tick(self, armed_for: float) -> None:
        if armed_for != self._timer:
            return  # an earlier one was armed since
        self._timer = float("inf")
        self.post(events.Tick())

    # -- peers: asking ------------------------------------------------------------------------

    def dial(self, other_id: int) -> None:
        """Open the connection on which we request; ends in PeerJoined or DialFailed."""
        if other_id in self.askable or other_id in self._dialling or other_id == self.node:
            return
        self._dialling.add(other_id)
        other = self.cluster.nodes.get(other_id)
        if other is None or not other.alive:
            self.world.after(2 * self.cluster.latency_s, self._dialled, None, other_id)
        elif other.hidden or self.cluster.cut(self, other):
            self.world.after(DIAL_TIMEOUT_S, self._dialled, None, other_id)
        else:  # TCP, handshake, JOIN
            self.world.after(6 * self.cluster.latency_s, self._dialled, other, other_id)

    def _dialled(self, other: "SimNode | None", other_id: int) -> None:
        self._dialling.discard(other_id)
        if not self.alive:
            return
        if other is None or not other.alive or self.cluster.cut(self, other):
            self.post(events.DialFailed(other_id))
            return
        self.askable[other_id] = other
        self._hear(other).askable = True
        other.inbound(self)
        self.post(events.PeerJoined(other_id, other.have, 2 * self.cluster.latency_s))

    def inbound(self, asker: "SimNode") -> None:
        """Somebody may request from us; we dial back if we want something too."""
        self.serving.askers[asker.node] = asker
        self._hear(asker)
        if not self.scheduler.complete:
            self.dial(asker.node)

    def _hear(self, other: "SimNode") -> "Neighbour":
        """A connection with it is there: we know what it has now."""
        known = self._heard.setdefault(other.node, Neighbour())
        known.have = other.have
        self.audience_changed()
        return known

    def audience_changed(self) -> None:
        """Somebody came or went."""
        self._audience = []

    def hang_up(self, other: "SimNode", outcome: Outcome) -> None:
        """The connection on which we request broke: every request to it ends."""
        if self.askable.pop(other.node, None) is None:
            return
        self._heard[other.node].askable = False
        self.audience_changed()
        other.serving.dropped_by(self)
        for number, (server, _run, _at) in list(self._asked.items()):
            if server is other:
                self.ended(number, outcome)
        self.post(events.PeerLeft(other.node))

    def stalled(self, other: "SimNode") -> None:
        """No bytes for too long: what was asked has ended, the connection is given up."""
        self.hang_up(other, Outcome.STALLED)

    def gives_up(self, other: "SimNode", number: int, hang_up: bool) -> None:  # noqa: FBT001 - through the heap
        """No bytes for this request for too long."""
        if hang_up and number in self._asked:
            self.stalled(other)
        self.ended(number, Outcome.STALLED)

    def ended(self, number: int, outcome: Outcome, began: float = 0.0) -> None:
        """The one end of a request of ours; its answer began then (0: there was none)."""
        _, _, at = self._asked.pop(number, (None, 0, -1.0))
        if at < 0:
            return
        self.world.trace(2, self.node, number, outcome)
        if outcome is Outcome.DONE:
            self.progressed()
        if outcome is Outcome.BUSY:
            began = self.world.now
        self.post(events.RequestEnded(number, outcome, began - at if began else 0.0))

    def progressed(self) -> None:
        """A run came."""
        since, self.progress_at = self.progress_at, self.world.now
        waited = self.progress_at - since >= LONG_S and not self.done
        if waited and self.link.epoch:  # without having met the tracker nothing may be read
            self.cluster.pauses.append(Pause(self.node, since, self.progress_at))

    def _on_request(self, command: commands.Request) -> None:
        server = self.askable.get(command.peer)
        self.world.trace(1, self.node, command.peer, command.run)
        if server is None:
            self._asked[command.request] = (self, command.run, self.world.now)
            self.world.after(0, self.ended, command.request, Outcome.LOST)
            return
        self._asked[command.request] = (server, command.run, self.world.now)
        self.cluster.send(
            self, server, server.serving.serve, self, command.request, command.run, command.priority
        )

    def _on_cancel(self, command: commands.Cancel) -> None:
        if command.request in self._asked:
            server = self._asked[command.request][0]
            self.cluster.send(self, server, server.serving.unserve, self, command.request)

    def _on_announce(self, command: commands.Announce) -> None:
        load = self.serving.queue.load
        runs = command.runs
        if not self._audience:
            heard, others = self._heard, {**self.serving.askers, **self.askable}
            self._audience = [(other, heard[node]) for node, other in others.items()]
        unaware = [
            other for other, known in self._audience
            if runs & ~known.have and not other.scheduler.complete
        ]  # fmt: skip
        self.cluster.spread(self, unaware, runs, load)

    def told(self, node: int, runs: int, load: int) -> None:
        """A neighbour's HAVE."""
        known = self._heard.get(node)
        if known is not None:
            known.have |= runs
            if known.askable:
                self.post(events.PeerHas(node, runs, load))

    # -- origin -------------------------------------------------------------------------------

    def _on_fetch(self, command: commands.Fetch) -> None:
        self.world.trace(3, self.node, command.fetch, command.run)
        self.reads.begin(command.fetch, command.run)

    # -- tracker ------------------------------------------------------------------------------

    def state(self, *, announcing: bool = False) -> m.SwarmState:
        """What an announcement or a heartbeat says of us."""
        scheduler, count = self.scheduler, len(self.run_bytes)
        have = b"" if scheduler.complete else bitset.to_bytes(self.have, count)
        leases = tuple(bitset.members(scheduler.origin_runs))
        return m.SwarmState(
            self.cluster.digest, count, have, complete=scheduler.complete,
            credit=scheduler.credit, leases=leases, known=self.members.listed if announcing else (),
            wanted=reports.wish(scheduler.wanted, count),
        )  # fmt: skip

    def tell_state(self) -> None:
        """Tell the tracker what we have now, not with the next heartbeat."""
        self.link.tell(m.Heartbeat(swarms=(self.state(),)))

    def from_tracker(self, message: m.ToAgent) -> None:
        """A message of the tracker."""
        match message:
            case m.Grant(_, epoch, runs):
                self.post(events.LeaseGranted(bitset.of(runs), epoch))
            case m.Revoke(_, runs):
                self.post(events.LeaseRevoked(bitset.of(runs)))
            case m.Swarm():
                self._swarm_changed(message)
            case m.Poll():
                self.tell_state()
            case m.Stop():
                self.corrupt = True
            case _:
                pass

    def _swarm_changed(self, message: m.Swarm) -> None:
        self.members = self.cluster.lists.after(self.members, message, self.node)
        if message.joined or message.left:
            listed = self.members.listed
            if not (name := self.place.rack):
                self.post(events.Members(listed, (), listed))
            else:
                racks = self.members.racks
                others = tuple(rack for other, rack in racks.items() if other != name)
                self.post(events.Members(listed, racks.get(name, ()), listed, others))
        self.wanted = [*dict.fromkeys((*self.wanted, *message.neighbours))]
        if not self.scheduler.complete:
            for node in message.neighbours:
                self.dial(node)

    def redial(self) -> None:
        """The driver's slow loop: dial the neighbours that we lack."""
        if self.alive and not self.scheduler.complete:
            for node in self.wanted:
                if node in self.members.ids:
                    self.dial(node)
            self.world.after(REDIAL_S, self.redial)

    def _on_report(self, command: commands.Command) -> None:
        self.cluster.stuck += isinstance(command, commands.Stuck)
        count = len(self.run_bytes)
        said = reports.to_tracker(command, self.cluster.digest, self.link.epoch, count)
        if said is not None:
            self.link.tell(said)

    def _on_blame(self, command: commands.Blame) -> None:
        self._on_report(command)
        other = self.askable.get(command.peer)
        if other is not None:
            self.world.after(0, self.hang_up, other, Outcome.LOST)

    def _on_finished(self, _command: commands.Finished) -> None:
        self._got_it()
        self.tell_state()

    def _on_dial(self, command: commands.Dial) -> None:
        self.dial(command.peer)

    def _on_corrupt(self, _command: commands.OriginCorrupt) -> None:
        self.corrupt = True

    def _on_wanted_done(self, _command: commands.WantedDone) -> None:
        self.wanted_done = self.world.now
        self._got_it()

    def _got_it(self) -> None:
        if self.finished is None:
            self.finished = self.world.now
            self.cluster.finished(self)

    def move(self, side: int) -> None:
        """A partition comes or goes."""
        self.side = self.up.side = self.down.side = side

    def die(self) -> None:
        """Killed: its sockets close, its flows stop."""
        self.alive = False
        self.link.broken()
        self.serving.stop()
        self.reads.stop()
        for other in list(self.askable.values()):
            other.serving.dropped_by(self)
        for other in list(self.serving.askers.values()):
            self.cluster.send(self, other, other.hang_up, self, Outcome.LOST)

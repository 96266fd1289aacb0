"""One agent in virtual time: the real scheduler and upload queue, and a driver that pretends.

An agent's driver, data plane and store work with sockets and disks. This node does the same with messages
and flows: a request reaches the server after the latency, waits in the real `UploadQueue`, flows,
and ends. It decides nothing that the daemon leaves to its core.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from p2pcache.core import bitset
from p2pcache.core.mechanisms import Mechanisms
from p2pcache.core.protocol import messages as m
from p2pcache.core.scheduler import reports
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings, UploadSettings
from p2pcache.core.swarm import commands, events
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.ids import NodeId, RunIndex, RunSet
from p2pcache.sim.cluster.agent_link import AgentLink, TrackerEnd
from p2pcache.sim.cluster.environment import Environment, Pause
from p2pcache.sim.cluster.member_list import NOBODY
from p2pcache.sim.cluster.node_place import Place
from p2pcache.sim.cluster.node_reads import OriginReads
from p2pcache.sim.cluster.node_state import NodeState
from p2pcache.sim.cluster.node_uploads import NodeUploads

REDIAL_S = 5.0  # as the agent's driver: neighbours that we lack are dialled again
DIAL_TIMEOUT_S = 3.0  # of a dial into the void
LONG_S = 5.0  # a node that gets no run for this long makes a pause that is noted


class Neighbour:
    """What a node knows of another one that it is or was connected with."""

    __slots__ = ("askable", "have")

    def __init__(self) -> None:
        self.have: RunSet = 0  # that it told us of
        self.askable = False  # we may request from it


class SimNode(NodeState):
    """One agent that wants the model."""

    def __init__(
        self, env: Environment, node: NodeId, *, nodes: "Mapping[NodeId, SimNode]", tracker: TrackerEnd, place: Place,
        rate: float, have: RunSet, settings: SwarmSettings, uploads: UploadSettings, on: Mechanisms, tracked: bool,
        check_every: int,
    ) -> None:  # fmt: skip
        """A node that starts now; nothing is dialled yet.

        Args:
            env: what surrounds it.
            node: its id.
            nodes: all nodes of the storm, by id.
            tracker: what its link to the tracker leads to.
            place: its rack and disk.
            rate: of its link each way, bytes per second.
            have: the runs that it has from before.
            settings: of its scheduler.
            uploads: of its upload queue.
            on: the rules in force.
            tracked: whether a tracker is configured.
            check_every: its invariants are checked after this many events; 0: never.
        """
        super().__init__(env, node, place=place, rate=rate)
        self._nodes = nodes
        self.uploads = NodeUploads(self, uploads, on)
        self.scheduler = Scheduler(
            node=node, run_bytes=env.run_bytes, have=have, settings=settings,
            seed=env.seed * 1_000_003 + node, tracker=tracked, now=self.world.now, story_lines=0, on=on,
        )  # fmt: skip
        self.link = AgentLink(self, tracker)
        self.started = self.world.now
        self.finished: float | None = None
        self.askable: dict[NodeId, SimNode] = {}  # nodes that we may request from
        self.askers: dict[NodeId, SimNode] = {}  # nodes that may request from us
        self._connected: dict[NodeId, Neighbour] = {}  # nodes that we are or were connected with
        # The nodes that hear what we have; []: to be made anew.
        self._audience: list[tuple[SimNode, Neighbour]] = []
        self._neighbours: list[NodeId] = []  # that the tracker named
        self._members = NOBODY
        self.corrupt = False  # gave up: the origin's bytes are wrong
        self._dialling: set[NodeId] = set()
        # Our requests in flight: server, run, when they were sent.
        self._asked: dict[int, tuple[SimNode, RunIndex, float]] = {}
        self.reads = OriginReads(self)
        self._timer = float("inf")
        self._inbox: deque[events.Event] = deque()
        self._busy = False
        self._check_every = check_every
        self._events = 0
        self._perform: dict[type[Any], Callable[[Any], None]] = {
            commands.Request: self._on_request, commands.Cancel: self._on_cancel,
            commands.Announce: self._on_announce, commands.Fetch: self._on_fetch,
            commands.CancelFetch: lambda command: self.reads.cancel_read(command.fetch),
            commands.LeaseReport: self._on_report, commands.LeaseCredit: self._on_report,
            commands.Stuck: self._on_report, commands.CutOff: self._on_report, commands.Blame: self._on_blame,
            commands.Finished: self._on_finished, commands.Dial: self._on_dial,
            commands.OriginCorrupt: self._on_corrupt, commands.WantedDone: self._on_wanted_done,
        }  # fmt: skip

    @property
    def is_source(self) -> bool:
        """Whether others can get from it what it has."""
        return self.alive and not (self.liar or self.hidden or self.uploads.fault)

    # -- events -----------------------------------------------------------------------------

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
            self.uploads.check()

    @property
    def done(self) -> bool:
        """Whether it has all that it was told to get."""
        return self.scheduler.complete or self.finished is not None

    @property
    def have(self) -> RunSet:
        """The proved runs."""
        return self.scheduler.have

    @property
    def load(self) -> int:
        """Its load, as have batches say it."""
        return self.uploads.queue.told_load

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

    def dial(self, other_id: NodeId) -> None:
        """Open the connection on which we request; ends in PeerJoined or DialFailed."""
        if other_id in self.askable or other_id in self._dialling or other_id == self.node:
            return
        self._dialling.add(other_id)
        other = self._nodes.get(other_id)
        if other is None or not other.alive:
            self.world.after(2 * self.env.latency_s, self._dialled, None, other_id)
        elif other.hidden or self.is_cut_from(other):
            self.world.after(DIAL_TIMEOUT_S, self._dialled, None, other_id)
        else:  # TCP, handshake, JOIN
            self.world.after(6 * self.env.latency_s, self._dialled, other, other_id)

    def _dialled(self, other: "SimNode | None", other_id: NodeId) -> None:
        self._dialling.discard(other_id)
        if not self.alive:
            return
        if other is None or not other.alive or self.is_cut_from(other):
            self.post(events.DialFailed(other_id))
            return
        self.askable[other_id] = other
        self._connect(other).askable = True
        other.on_dialled(self)
        self.post(events.PeerJoined(other_id, other.have, 2 * self.env.latency_s))

    def on_dialled(self, asker: "SimNode") -> None:
        """A node may request from us; we dial back if we want something too."""
        self.askers[asker.node] = asker
        self._connect(asker)
        self.post(events.Reachable())
        if not self.scheduler.complete:
            self.dial(asker.node)

    def _connect(self, other: "SimNode") -> Neighbour:
        """A connection is there: we know what the other node has now."""
        known = self._connected.setdefault(other.node, Neighbour())
        known.have = other.have
        self._audience = []
        return known

    def on_request(self, asker: "SimNode", number: int, run: RunIndex, priority: Priority) -> None:
        """A request came in."""
        if self.alive and asker.node in self.askers:
            self.uploads.serve(asker, number, run, priority)

    def asker_left(self, asker: "SimNode") -> None:
        """The connection on which a node requested is gone."""
        self.askers.pop(asker.node, None)
        self._audience = []
        self.uploads.asker_left(asker)

    def hang_up(self, other: "SimNode", outcome: Outcome) -> None:
        """The connection on which we request broke: every request to it ends."""
        if self.askable.pop(other.node, None) is None:
            return
        self._connected[other.node].askable = False
        self._audience = []
        other.asker_left(self)
        for number, (server, _run, _at) in list(self._asked.items()):
            if server is other:
                self.ended(number, outcome)
        self.post(events.PeerLeft(other.node))

    def give_up(self, number: int, hang_up: bool) -> None:  # noqa: FBT001 - through the heap
        """No bytes came for a request for too long."""
        if not self.alive:
            return  # a dead node's end of a connection would end that of the node which started again in its place
        if hang_up and number in self._asked:
            self.hang_up(self._asked[number][0], Outcome.STALLED)
        self.ended(number, Outcome.STALLED)

    def ended(self, number: int, outcome: Outcome, began: float = 0.0) -> None:
        """A request of ours has ended; its answer began then (0: there was none)."""
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
            self.env.pauses.append(Pause(self.node, since, self.progress_at))

    def _on_request(self, command: commands.Request) -> None:
        server = self.askable.get(command.peer)
        self.world.trace(1, self.node, command.peer, command.run)
        if server is None:
            self._asked[command.request] = (self, command.run, self.world.now)
            self.world.after(0, self.ended, command.request, Outcome.LOST)
            return
        self._asked[command.request] = (server, command.run, self.world.now)
        self.send(server, server.on_request, self, command.request, command.run, command.priority)

    def _on_cancel(self, command: commands.Cancel) -> None:
        if command.request in self._asked:
            server = self._asked[command.request][0]
            self.send(server, server.uploads.cancel_upload, self, command.request)

    def _on_announce(self, command: commands.Announce) -> None:
        if not self._audience:
            connected, others = self._connected, {**self.askers, **self.askable}
            self._audience = [(other, connected[node]) for node, other in others.items()]
        self.spread([
            (other, runs) for other, known in self._audience
            if not other.scheduler.complete and (runs := command.runs & ~known.have)
        ])  # fmt: skip

    def on_have_batch(self, node: NodeId, runs: RunSet, load: int) -> None:
        """A neighbour's HAVE came in."""
        known = self._connected.get(node)
        if known is not None:
            known.have |= runs
            if known.askable:
                self.post(events.PeerHas(node, runs, load))

    # -- origin -------------------------------------------------------------------------------

    def _on_fetch(self, command: commands.Fetch) -> None:
        self.world.trace(3, self.node, command.fetch, command.run)
        self.reads.begin(command.fetch, command.run, joined=command.joined)

    # -- tracker ------------------------------------------------------------------------------

    def announced_state(self, *, first: bool = False) -> m.SwarmState:
        """What an announcement (the `first` message) or a heartbeat says of us."""
        scheduler, count = self.scheduler, len(self.run_bytes)
        have = b"" if scheduler.complete else bitset.to_bytes(self.have, count)
        leases = tuple(bitset.members(scheduler.origin_runs))
        return m.SwarmState(
            self.env.digest, count, have, complete=scheduler.complete,
            credit=scheduler.credit, leases=leases, known=self._members.listed if first else (),
            wanted=reports.wish(scheduler.wanted, count),
        )  # fmt: skip

    def tell_state(self) -> None:
        """Tell the tracker what we have now, not with the next heartbeat."""
        self.link.tell(m.Heartbeat(swarms=(self.announced_state(),)))

    def from_tracker(self, message: m.ToAgent) -> None:
        """A message of the tracker."""
        match message:
            case m.Grant(_, _, runs, in_flight):
                self.post(events.LeaseGranted(bitset.of(runs), in_flight))
            case m.Revoke(_, runs):
                self.post(events.LeaseRevoked(bitset.of(runs)))
            case m.Swarm() if message.digest == self.env.digest:
                self._swarm_changed(message)
            case m.Poll():
                self.tell_state()
            case m.Stop():
                self.corrupt = True
            case _:
                pass

    def _swarm_changed(self, message: m.Swarm) -> None:
        self._members = self.env.lists.after(self._members, message, self.node)
        if message.joined or message.left:
            listed = self._members.listed
            if not (name := self.place.rack):
                self.post(events.Members(listed, (), listed))
            else:
                racks = self._members.racks
                others = tuple(rack for other, rack in racks.items() if other != name)
                self.post(events.Members(listed, racks.get(name, ()), listed, others))
        self._neighbours = [*dict.fromkeys((*self._neighbours, *message.neighbours))]
        if not self.scheduler.complete:
            for node in message.neighbours:
                self.dial(node)

    def redial(self) -> None:
        """The driver's slow loop: dial the neighbours that we lack."""
        if self.alive and not self.scheduler.complete:
            for node in self._neighbours:
                if node in self._members.ids:
                    self.dial(node)
            self.world.after(REDIAL_S, self.redial)

    def _on_report(self, command: commands.Command) -> None:
        self.env.stuck += isinstance(command, commands.Stuck)
        count = len(self.run_bytes)
        said = reports.to_tracker(command, self.env.digest, self.link.epoch, count)
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
        self._got_it()

    def _got_it(self) -> None:
        if self.finished is None:
            self.finished = self.world.now
            self.env.finished()

    def die(self) -> None:
        """Killed: its sockets close, its flows stop."""
        self.alive = False
        self.link.broken()
        self.uploads.stop()
        self.reads.stop()
        for other in list(self.askable.values()):
            other.asker_left(self)
        for other in list(self.askers.values()):
            self.send(other, other.hang_up, self, Outcome.LOST)

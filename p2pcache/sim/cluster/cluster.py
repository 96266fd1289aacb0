"""All that one simulated storm is made of, and what can be done to it."""

from collections.abc import Callable
from typing import Any

from p2pcache.core.settings import LeaseSettings, MemberSettings, SwarmSettings, UploadSettings
from p2pcache.sim.cluster.member_list import MemberLists
from p2pcache.sim.cluster.network import Link, Network
from p2pcache.sim.cluster.node import Pause, SimNode
from p2pcache.sim.cluster.node_place import Place
from p2pcache.sim.cluster.node_reads import STALL_S
from p2pcache.sim.cluster.tracker import SimTracker
from p2pcache.sim.cluster.world import World

# Network solutions while a link carries one run; 4 take 0.003 from eta, 16 add 0.001.
RESOLUTION = 8
FULL = 0.1  # of a link's rate: with less to spare, bytes wait before it
LINK_DEAD_S = 15.0  # a tracker connection that is silent so long is given up by the agent


class Cluster:
    """Origin, tracker and nodes on one network."""

    def __init__(
        self, *, seed: int, run_bytes: list[int], rate: float, origin_rate: float,
        latency_s: float, origin_latency_s: float, settings: SwarmSettings | None = None,
        uploads: UploadSettings | None = None, leases: LeaseSettings | None = None,
        members: MemberSettings | None = None, tracker: bool = True, queue_s: float = 0.0, resolution: int = RESOLUTION,
        origin_jitter: float = 0.0, origin_stream: float = 0.0, check_every: int = 0,
    ) -> None:  # fmt: skip
        """An origin and, if wanted, a tracker; no nodes yet.

        Args:
            seed: of every dice.
            run_bytes: the model.
            rate: of an ordinary node's link each way, bytes per second.
            origin_rate: of the origin's uplink.
            latency_s: one way, between nodes.
            origin_latency_s: one way, to the origin.
            settings: of every node's scheduler.
            uploads: of every node's upload queue.
            leases: of the tracker.
            members: of the tracker.
            tracker: whether there is one.
            resolution: solutions of the network while a link carries one run.
            queue_s: what a full link adds to each message between nodes: the bytes that wait before it.
            origin_jitter: sigma of the log-normal wait for the origin's first byte (0: always the same): most
                take about as long, some several times that, as of real object storage.
            origin_stream: bytes per second of one read of the origin at most; 0: what its links carry.
            check_every: invariants are checked after every so many events of a node; 0: never.
        """
        self.seed = seed
        self.world = World(seed)
        self.net = Network(self.world, run_bytes[0] / rate / resolution)
        self.run_bytes = run_bytes
        self.rate = rate
        self.latency_s = latency_s
        self.queue_s = queue_s
        self.origin_latency_s = origin_latency_s
        self._origin_jitter = origin_jitter
        self.origin_stream = origin_stream
        self.digest = "ab" * 32
        self.settings = settings or SwarmSettings()
        self.uploads = uploads or UploadSettings()
        self.members = members or MemberSettings()
        self.origin = self.net.link(origin_rate)
        self.refusing_until = 0.0  # the origin fails reads that begin
        self.frozen_until = 0.0  # it answers, but sends nothing
        self.nodes: dict[int, SimNode] = {}
        self.lists = MemberLists()
        self.gone: list[SimNode] = []  # died and were restarted
        self.missing = 0  # nodes that haven't got what they want
        self.stuck = 0  # Stuck notices
        self.pauses: list[Pause] = []  # of nodes that waited for long
        self.lost_runs = 0  # died with their only holder, or on the way from the origin
        self._tracked = tracker
        self._check_every = check_every
        self._held: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.tracker = SimTracker(self, leases or LeaseSettings(), check_every=check_every)
        if tracker:
            self.tracker.start()

    def first_byte_s(self) -> float:
        """How long a read waits that begins now."""
        usual_s, sigma = 2 * self.origin_latency_s, self._origin_jitter
        return usual_s * self.world.dice.lognormvariate(0.0, sigma) if sigma else usual_s

    def add(
        self, *, rate: float | None = None, have: int = 0, liar: bool = False,
        hidden: bool = False, fault: str = "", place: Place | None = None,
    ) -> SimNode:  # fmt: skip
        """A node starts now.

        Args:
            rate: of its links; None: an ordinary one's.
            have: runs (bits) that it has from before.
            liar: it serves garbage.
            hidden: nobody can dial it (it is behind a NAT or a firewall); it dials others.
            fault: why it delivers nothing of what it has, as `Serving.fault`.
            place: its rack and disk.
        """
        number = len(self.nodes) + 1
        node = self._node(number * 7919, rate or self.rate, have, place or Place())
        node.liar = liar
        node.hidden = hidden
        node.serving.fault = fault
        return self._begin(node)

    def restart(self, dead: SimNode, have: int) -> SimNode:
        """A node that died starts again, with what its disk kept."""
        self.gone.append(dead)
        node = self._node(dead.node, dead.up.rate, have, dead.place)
        return self._begin(node)

    def _node(self, number: int, rate: float, have: int, place: Place) -> SimNode:
        self.lists.rack_of[number] = place.rack
        return SimNode(
            self, number, place=place, rate=rate, run_bytes=self.run_bytes, have=have,
            settings=self.settings, uploads=self.uploads, tracker=self._tracked,
            check_every=self._check_every,
        )  # fmt: skip

    def _begin(self, node: SimNode) -> SimNode:
        self.nodes[node.node] = node
        self.missing += not node.done
        if self._tracked:
            node.link.connect()
        node.redial()
        wake = node.scheduler.next_wakeup()
        if wake is not None:
            node.wake(wake)
        return node

    def finished(self, _node: SimNode) -> None:
        """A node has what it wants."""
        self.missing -= 1

    def kill(self, node: SimNode) -> None:
        """A node dies."""
        if node.alive:
            self.missing -= not node.done
            node.die()
            left = 0
            for other in self.nodes.values():
                left |= other.have if other.is_source else 0
            self.lost_runs += (node.have & ~left).bit_count() + len(node.reads)

    def refuse_reads(self, seconds: float) -> None:
        """The origin fails every read that begins for some while."""
        self.refusing_until = self.world.now + seconds

    def freeze_origin(self, seconds: float) -> None:
        """No byte more on the connections that read now, nor on those that ask for some while."""
        self.frozen_until = self.world.now + seconds
        self.lost_runs += sum(node.reads.freeze() for node in self.nodes.values() if node.alive)

    # -- messages -----------------------------------------------------------------------------

    def send(self, a: SimNode, b: SimNode, what: Callable[..., None], *args: Any) -> None:
        """A message from node to node, behind what waits at the uplink of one and the downlink of the other."""
        self.post(a.side, b.side, what, *args, queued_s=self.queued_s_between(a, b))

    def queued_s_between(self, a: SimNode, b: SimNode) -> float:
        """How long what is sent now from node to node lies before full links."""
        return self._queued_s(a.up) + self._queued_s(b.down)

    def _queued_s(self, link: Link) -> float:
        return self.queue_s if self.queue_s and link.spare < FULL * link.rate else 0.0

    def post(
        self, side_a: int, side_b: int, what: Callable[..., None], *args: Any, queued_s: float = 0.0
    ) -> None:
        """A message; one that a partition stops arrives when it heals, as TCP would have it."""
        if self.between(side_a, side_b):
            self._held.append((side_a, side_b, what, args))
        else:
            self.world.arrives(self.latency_s + queued_s, what, *args)

    def spread(self, a: SimNode, others: list[SimNode], runs: int, load: int) -> None:
        """A HAVE from one node to many: one thing to happen, or half the time went into the heap."""
        if a.side:
            for b in others:
                self.send(a, b, b.told, a.node, runs, load)
        elif others:
            self.world.arrives(
                self.latency_s + self._queued_s(a.up), self._spread, others, a.node, runs, load
            )

    def _spread(self, others: list[SimNode], node: int, runs: int, load: int) -> None:
        self.world.steps += len(others) - 1
        for other in others:
            other.told(node, runs, load)

    # -- partitions ---------------------------------------------------------------------------

    @staticmethod
    def between(side_a: int, side_b: int) -> bool:
        """Whether a partition lies between two places."""
        return side_a * side_b != 0 and side_a != side_b

    def cut(self, a: SimNode, b: SimNode) -> bool:
        """Whether a partition lies between two nodes."""
        return self.between(a.side, b.side)

    def partition(
        self, ones: list[SimNode], others: list[SimNode], seconds: float, *, tracker_sees_all: bool
    ) -> None:
        """Cut these nodes off from each other (not from the origin) for a while.

        Args:
            ones: the first side.
            others: the second side. Who is on neither reaches both.
            seconds: until it heals.
            tracker_sees_all: False: the tracker is on the first side; True: it reaches both, and so
                has no idea that they can't reach each other.
        """
        self.tracker.side = 0 if tracker_sees_all else 1
        for node in ones:
            node.move(1)
        for node in others:
            node.move(2)
        self.net.rewired()
        if seconds > STALL_S:
            self.world.after(STALL_S, self._give_up_peers)
        if seconds > LINK_DEAD_S:
            self.world.after(LINK_DEAD_S, self._give_up_tracker)
        self.world.after(seconds, self._heal)

    def _give_up_peers(self) -> None:
        for node in self.nodes.values():
            for other in list(node.askable.values()):
                if self.cut(node, other):
                    node.stalled(other)

    def _give_up_tracker(self) -> None:
        for node in self.nodes.values():
            if self.between(node.side, self.tracker.side):
                node.link.broken()

    def _heal(self) -> None:
        self.tracker.side = 0
        for node in self.nodes.values():
            node.move(0)
        held, self._held = self._held, []
        for _, _, what, args in held:
            self.world.after(self.latency_s, what, *args)
        self.net.rewired()

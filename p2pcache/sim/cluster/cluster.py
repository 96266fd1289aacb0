"""One simulated storm: its environment, tracker and nodes, and what can be done to them."""

from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.settings import LeaseSettings, MemberSettings, SwarmSettings, UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import NodeId, RunSet
from p2pcache.sim.cluster.environment import Environment
from p2pcache.sim.cluster.node import SimNode
from p2pcache.sim.cluster.node_place import Place
from p2pcache.sim.cluster.node_reads import STALL_S
from p2pcache.sim.cluster.tracker import SimTracker

# Solutions of the network while a link carries one run: more cost time and change eta little.
RESOLUTION = 8
LINK_DEAD_S = 15.0  # a tracker connection that is silent for this long is given up by the agent


class Cluster(Environment):
    """Origin, tracker and nodes on one network."""

    def __init__(
        self, *, seed: int, run_bytes: list[int], rate: float, origin_rate: float,
        latency_s: float, origin_latency_s: float, settings: SwarmSettings | None = None,
        uploads: UploadSettings | None = None, leases: LeaseSettings | None = None,
        members: MemberSettings | None = None, tracker: bool = True, queue_s: float = 0.0, resolution: int = RESOLUTION,
        origin_jitter: float = 0.0, origin_stream: float = 0.0, further_share: float = 1.0, check_every: int = 0,
        on: Mechanisms = ALL_ON,
    ) -> None:  # fmt: skip
        """An origin and, if wanted, a tracker; no nodes yet.

        Args:
            seed: of all dice.
            run_bytes: the size of each run of the model.
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
            further_share: of full links that a read gets that begins while its node reads, beside 1 of the first: a new
                connection starves beside those that fill the queue.
            check_every: invariants are checked after this many events of a node; 0: never.
            on: the rules in force on every node.
        """
        super().__init__(
            seed=seed, run_bytes=run_bytes, quantum_s=run_bytes[0] / rate / resolution, origin_rate=origin_rate,
            latency_s=latency_s, origin_latency_s=origin_latency_s, queue_s=queue_s, origin_jitter=origin_jitter,
            origin_stream=origin_stream, further_share=further_share, members=members or MemberSettings(),
        )  # fmt: skip
        self.rate = rate
        self.settings = settings or SwarmSettings()
        self.uploads = uploads or UploadSettings()
        self.nodes: dict[NodeId, SimNode] = {}
        self.gone: list[SimNode] = []  # died and were restarted
        self.lost_runs = 0  # died with their only holder, or on the way from the origin
        self._tracked = tracker
        self._on = on
        self._check_every = check_every
        self.tracker = SimTracker(
            self, self.nodes, leases or LeaseSettings(), check_every=check_every
        )
        if tracker:
            self.tracker.start()

    def add_node(
        self, *, rate: float | None = None, have: RunSet = 0, liar: bool = False,
        hidden: bool = False, fault: str = "", place: Place | None = None,
    ) -> SimNode:  # fmt: skip
        """A node starts now.

        Args:
            rate: of its links; None: an ordinary one's.
            have: the runs that it has from before.
            liar: it serves garbage.
            hidden: nobody can dial it (it is behind a NAT or a firewall); it dials others.
            fault: why it delivers nothing of what it has, as `NodeUploads.fault`.
            place: its rack and disk.
        """
        number = len(self.nodes) + 1
        node = self._node(number * 7919, rate or self.rate, have, place or Place())
        node.liar = liar
        node.hidden = hidden
        node.uploads.fault = fault
        return self._begin(node)

    def restart(self, dead: SimNode, have: RunSet) -> SimNode:
        """A node that died starts again, with what its disk kept."""
        self.gone.append(dead)
        node = self._node(dead.node, dead.up.rate, have, dead.place)
        return self._begin(node)

    def _node(self, node: NodeId, rate: float, have: RunSet, place: Place) -> SimNode:
        self.lists.rack_of[node] = place.rack
        return SimNode(
            self, node, nodes=self.nodes, tracker=self.tracker, place=place, rate=rate, have=have,
            settings=self.settings, uploads=self.uploads, on=self._on, tracked=self._tracked,
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
        """The origin fails every read that begins in the next seconds."""
        self.refusing_until = self.world.now + seconds

    def freeze_origin(self, seconds: float) -> None:
        """The origin sends nothing on connections that read now or ask in the next seconds."""
        self.frozen_until = self.world.now + seconds
        self.lost_runs += sum(node.reads.freeze() for node in self.nodes.values() if node.alive)

    def partition(
        self, ones: list[SimNode], others: list[SimNode], seconds: float, *, tracker_sees_all: bool
    ) -> None:
        """Cut these nodes off from each other (not from the origin) for a while.

        Args:
            ones: the first side.
            others: the second side. A node on neither side reaches both.
            seconds: until it heals.
            tracker_sees_all: False: the tracker is on the first side. True: it reaches both sides, so it doesn't
                know that they can't reach each other.
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
                if node.is_cut_from(other):
                    node.hang_up(other, Outcome.STALLED)

    def _give_up_tracker(self) -> None:
        for node in self.nodes.values():
            if self.between(node.side, self.tracker.side):
                node.link.broken()

    def _heal(self) -> None:
        self.tracker.side = 0
        for node in self.nodes.values():
            node.move(0)
        self.deliver_held()
        self.net.rewired()

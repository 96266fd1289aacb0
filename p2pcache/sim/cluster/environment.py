"""What surrounds the nodes of one storm: network, messages, origin, and counts of what happened.

Nodes and tracker know the environment. The environment knows neither of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from p2pcache.core.settings import MemberSettings
from p2pcache.ids import NodeId
from p2pcache.sim.cluster.member_list import MemberLists
from p2pcache.sim.cluster.network import Link, Network
from p2pcache.sim.cluster.world import World

FULL = 0.1  # of a link's rate: with less to spare, bytes wait before it


class Pause(NamedTuple):
    """A node that lacked runs got none for long. Times in seconds."""

    node: NodeId
    since: float
    until: float


class Environment:
    """The world, its links, the origin and the messages on their way."""

    def __init__(
        self, *, seed: int, run_bytes: list[int], quantum_s: float, origin_rate: float,
        latency_s: float, origin_latency_s: float, queue_s: float, origin_jitter: float, origin_stream: float,
        further_share: float,
        members: MemberSettings,
    ) -> None:  # fmt: skip
        """Nothing happened yet.

        Args:
            seed: of all dice.
            run_bytes: the size of each run of the model.
            quantum_s: between two solutions of the network.
            origin_rate: of the origin's uplink, bytes per second.
            latency_s: one way, between nodes.
            origin_latency_s: one way, to the origin.
            queue_s: what a full link adds to a message between nodes.
            origin_jitter: sigma of the log-normal wait for the origin's first byte; 0: it is always the same.
            origin_stream: bytes per second of one read at most; 0: what the links carry.
            further_share: of full links that a read gets that begins while its node reads, beside 1 of the first.
            members: settings of the membership.
        """
        self.seed = seed
        self.world = World(seed)
        self.net = Network(self.world, quantum_s)
        self.run_bytes = run_bytes
        self.latency_s = latency_s
        self.queue_s = queue_s
        self.origin_latency_s = origin_latency_s
        self._origin_jitter = origin_jitter
        self.origin_stream = origin_stream
        self.further_share = further_share
        self.sent_in_vain = 0.0  # bytes that the origin had sent when a read was cancelled
        self.digest = "ab" * 32
        self.members = members
        self.origin = self.net.link(origin_rate)
        self.refusing_until = 0.0  # the origin fails reads that begin
        self.frozen_until = 0.0  # the origin answers, but sends nothing
        self.lists = MemberLists()
        self.missing = 0  # nodes that haven't got what they want
        self.stuck = 0  # Stuck notices
        self.pauses: list[Pause] = []  # of nodes that waited for long
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def first_byte_s(self) -> float:
        """How long a read that begins now waits for its first byte, in seconds."""
        usual_s, sigma = 2 * self.origin_latency_s, self._origin_jitter
        return usual_s * self.world.dice.lognormvariate(0.0, sigma) if sigma else usual_s

    def finished(self) -> None:
        """A node has what it wants."""
        self.missing -= 1

    # -- messages -----------------------------------------------------------------------------

    def queued_s(self, link: Link) -> float:
        """How long a message that is sent now lies before a link, in seconds."""
        return self.queue_s if self.queue_s and link.spare < FULL * link.rate else 0.0

    def post(
        self, side_a: int, side_b: int, what: Callable[..., None], *args: Any, queued_s: float = 0.0
    ) -> None:
        """Send a message. If a partition stops it, it arrives when the partition heals, as with TCP.

        Args:
            side_a: of the partition, where the sender is.
            side_b: where the receiver is.
            what: called when the message arrives.
            *args: of the call.
            queued_s: how long it lies before full links.
        """
        if self.between(side_a, side_b):
            self._held.append((what, args))
        else:
            self.world.arrives(self.latency_s + queued_s, what, *args)

    def deliver_held(self) -> None:
        """The partition has healed: what it stopped is on its way."""
        held, self._held = self._held, []
        for what, args in held:
            self.world.after(self.latency_s, what, *args)

    @staticmethod
    def between(side_a: int, side_b: int) -> bool:
        """Whether a partition lies between two places."""
        return side_a * side_b != 0 and side_a != side_b

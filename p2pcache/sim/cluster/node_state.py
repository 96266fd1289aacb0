"""What the parts of a simulated node, its tracker and its neighbours know of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm import events
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import NodeId, RunSet
from p2pcache.sim.cluster.environment import Environment
from p2pcache.sim.cluster.node_place import Place


class NodeState(ABC):
    """One node: its links, where it stands, and what it can be told."""

    def __init__(self, env: Environment, node: NodeId, *, place: Place, rate: float) -> None:
        """A node that lives.

        Args:
            env: what surrounds it.
            node: its id.
            place: its rack and disk.
            rate: of its link each way, bytes per second.
        """
        self.env = env
        self.world = env.world
        self.net = env.net
        self.run_bytes = env.run_bytes
        self.node = node
        self.up = env.net.link(rate)
        self.down = env.net.link(rate)
        self.place = place
        self.links_in = [link for link in (place.way_in, self.down, place.disk) if link is not None]
        self.alive = True
        self.liar = False  # it serves garbage
        self.hidden = False  # nobody can dial it
        self.side = 0  # of a partition; 0: it reaches both
        self.progress_at = self.world.now  # when it last got a run, or started

    def move(self, side: int) -> None:
        """A partition comes or goes."""
        self.side = self.up.side = self.down.side = side

    def is_cut_from(self, other: "NodeState") -> bool:
        """Whether a partition lies between this node and another one."""
        return self.env.between(self.side, other.side)

    def send(self, other: "NodeState", what: Callable[..., None], *args: Any) -> None:
        """Send a message to a node. It waits at this node's uplink and the other one's downlink if they are full.

        Args:
            other: the receiver.
            what: called when the message arrives.
            *args: of the call.
        """
        self.env.post(self.side, other.side, what, *args, queued_s=self.queued_s_to(other))

    def spread(self, batches: "Sequence[tuple[NodeState, RunSet]]") -> None:
        """Send HAVEs to many nodes: one entry in the world's heap, which would cost half of the time otherwise.

        Args:
            batches: receivers, and what each is told that this node has now.
        """
        load = self.load
        if self.side:
            for other, runs in batches:
                self.send(other, other.on_have_batch, self.node, runs, load)
        elif batches:
            delay_s = self.env.latency_s + self.env.queued_s(self.up)
            self.world.arrives(delay_s, self._spread_arrives, batches, load)

    def _spread_arrives(self, batches: "Sequence[tuple[NodeState, RunSet]]", load: int) -> None:
        self.world.steps += len(batches) - 1
        for other, runs in batches:
            other.on_have_batch(self.node, runs, load)

    def queued_s_to(self, other: "NodeState") -> float:
        """How long a message to a node that is sent now lies before full links, in seconds."""
        return self.env.queued_s(self.up) + self.env.queued_s(other.down)

    @property
    @abstractmethod
    def have(self) -> RunSet:
        """The proved runs."""

    @property
    @abstractmethod
    def load(self) -> int:
        """Its load, as have batches say it."""

    @abstractmethod
    def post(self, event: events.Event) -> None:
        """Hand an event to the scheduler and perform its commands."""

    @abstractmethod
    def progressed(self) -> None:
        """A run came."""

    @abstractmethod
    def on_have_batch(self, node: NodeId, runs: RunSet, load: int) -> None:
        """A neighbour's HAVE came in."""

    @abstractmethod
    def ended(self, number: int, outcome: Outcome, began: float = 0.0) -> None:
        """A request of this node has ended.

        Args:
            number: of the request.
            outcome: how.
            began: when its answer began; 0: there was none.
        """

    @abstractmethod
    def give_up(self, number: int, hang_up: bool) -> None:  # noqa: FBT001 - through the heap
        """No bytes came for a request for too long.

        Args:
            number: of the request.
            hang_up: whether the connection is given up as well.
        """

    @abstractmethod
    def announced_state(self, *, first: bool = False) -> m.SwarmState:
        """What an announcement (the `first` message) or a heartbeat says of it."""

    @abstractmethod
    def from_tracker(self, message: m.ToAgent) -> None:
        """A message of the tracker came in."""

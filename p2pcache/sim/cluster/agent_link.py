"""One agent's connection to the tracker, in virtual time: announce, heartbeat, come back."""

from ipaddress import ip_address
from typing import TYPE_CHECKING

from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm import events

if TYPE_CHECKING:
    from p2pcache.sim.cluster.node import SimNode

RECONNECT_S = 1.0  # with jitter, as the agent's first attempts
LAST_RECONNECT_S = 1.5 * RECONNECT_S  # by then everybody has found a tracker that came back


class AgentLink:
    """The agent's end. A message in flight when the connection breaks is lost with it."""

    def __init__(self, agent: "SimNode") -> None:
        self._agent = agent
        self.epoch = 0
        self.connected = False
        self._generation = 0  # of the connection: late messages of an old one are dropped

    def connect(self) -> None:
        """Try until it works."""
        agent = self._agent
        cluster = agent.cluster
        if not agent.alive or self.connected:
            return
        if not cluster.tracker.reachable(agent):
            pause = RECONNECT_S * (0.5 + cluster.world.dice.random())
            cluster.world.after(pause, self.connect)
            return
        self.connected = True
        self._generation += 1
        address, rack = f"{ip_address(agent.node + 1)}:7401", agent.place.rack
        self.tell(m.Announce(address, "sim", rack=rack, swarms=(agent.state(announcing=True),)))
        cluster.world.after(self._beat_s(), self._beat, self._generation)

    def tell(self, message: m.ToTracker) -> None:
        """Send a message, if there is a connection."""
        cluster = self._agent.cluster
        if self.connected:
            tracker = cluster.tracker
            cluster.post(self._agent.side, tracker.side, tracker.hear, self, message)

    def hear(self, generation: int, message: m.ToAgent) -> None:
        """The tracker's message arrives."""
        if not self.connected or generation != self._generation:
            return
        if isinstance(message, m.Settled):
            if not self.epoch:  # who never met a tracker may read nothing, and knows nobody
                self._agent.progress_at = self._agent.world.now
            self.epoch = message.epoch
            self._agent.post(events.TrackerUp(message.epoch))
        else:
            self._agent.from_tracker(message)

    def broken(self) -> None:
        """The connection is gone; tried again if the agent lives."""
        if not self.connected:
            return
        self.connected = False
        agent = self._agent
        agent.cluster.tracker.lost(agent.node)
        if agent.alive:
            agent.post(events.TrackerDown())
            self.connect()

    @property
    def node(self) -> int:
        """Whose end this is."""
        return self._agent.node

    @property
    def generation(self) -> int:
        """Of the connection that stands."""
        return self._generation

    @property
    def side(self) -> int:
        """Of a partition."""
        return self._agent.side

    def _beat(self, generation: int) -> None:
        if not self.connected or generation != self._generation:
            return
        self.tell(m.Heartbeat(load=self._agent.serving.queue.load, swarms=(self._agent.state(),)))
        self._agent.world.after(self._beat_s(), self._beat, generation)

    def _beat_s(self) -> float:
        cluster = self._agent.cluster
        return cluster.members.heartbeat_s * (0.8 + 0.4 * cluster.world.dice.random())

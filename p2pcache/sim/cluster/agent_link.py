"""One agent's connection to the tracker, in virtual time: announce, heartbeat, come back."""

from ipaddress import ip_address
from typing import Protocol

from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm import events
from p2pcache.ids import NodeId
from p2pcache.sim.cluster.node_state import NodeState

RECONNECT_S = 1.0  # with jitter, as the agent's first attempts
LAST_RECONNECT_S = 1.5 * RECONNECT_S  # by then everybody has found a tracker that came back


class TrackerEnd(Protocol):
    """What an agent sees of its tracker."""

    side: int  # of a partition

    @property
    def frozen(self) -> bool:
        """Whether it is stopped."""

    def reachable(self, agent: NodeState) -> bool:
        """Whether a connection can be made now."""

    def hear(self, link: "AgentLink", message: m.ToTracker) -> None:
        """A message of an agent arrives."""

    def lost(self, node: NodeId) -> None:
        """The connection of an agent broke."""


class AgentLink:
    """The agent's end. A message in flight when the connection breaks is lost with it."""

    def __init__(self, agent: NodeState, tracker: TrackerEnd) -> None:
        self._agent = agent
        self._tracker = tracker
        self.epoch = 0
        self.connected = False
        self.doubted = False  # the tracker is, so that we go by the rules without one
        self._generation = 0  # of the connection: late messages of an old one are dropped

    def connect(self) -> None:
        """Try until it works."""
        agent = self._agent
        world = agent.world
        if not agent.alive or self.connected:
            return
        if not self._tracker.reachable(agent):
            world.after(RECONNECT_S * (0.5 + world.dice.random()), self.connect)
            return
        self.connected, self.doubted = True, False
        self._generation += 1
        self.tell(self._announcement())
        world.after(self._beat_s(), self._beat, self._generation)

    def tell(self, message: m.ToTracker) -> None:
        """Send a message, if there is a connection."""
        if self.connected and not self.doubted:
            agent, tracker = self._agent, self._tracker
            queued_s = agent.env.queued_s(agent.up)
            agent.env.post(agent.side, tracker.side, tracker.hear, self, message, queued_s=queued_s)

    def hear(self, generation: int, message: m.ToAgent) -> None:
        """The tracker's message arrives."""
        if not self.connected or generation != self._generation:
            return
        if isinstance(message, m.Settled):
            self.doubted = False
            if (
                not self.epoch
            ):  # before it met a tracker, the node may read nothing and knows no other one
                self._agent.progress_at = self._agent.world.now
            self.epoch = message.epoch
            self._agent.post(events.TrackerUp(message.epoch))
        elif not self.doubted:
            self._agent.from_tracker(message)

    def doubt(self) -> None:
        """The tracker has said nothing for long."""
        if self.connected and self._tracker.frozen and self._agent.alive:
            self.doubted = True
            self._agent.post(events.TrackerDown())

    def believe(self) -> None:
        """The doubted tracker speaks: it gets our announcement anew."""
        if self.connected and self.doubted:
            agent, tracker = self._agent, self._tracker
            agent.env.post(agent.side, tracker.side, tracker.hear, self, self._announcement())

    def broken(self) -> None:
        """The connection is gone; tried again if the agent lives."""
        if not self.connected:
            return
        self.connected = False
        agent = self._agent
        self._tracker.lost(agent.node)
        if agent.alive:
            if not self.doubted:
                agent.post(events.TrackerDown())
            self.connect()

    @property
    def node(self) -> NodeId:
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

    def _announcement(self) -> m.Announce:
        agent = self._agent
        address, rack = f"{ip_address(agent.node + 1)}:7401", agent.place.rack
        return m.Announce(address, "sim", rack=rack, swarms=(agent.announced_state(first=True),))

    def _beat(self, generation: int) -> None:
        if not self.connected or generation != self._generation:
            return
        agent = self._agent
        self.tell(m.Heartbeat(load=agent.load, swarms=(agent.announced_state(),)))
        agent.world.after(self._beat_s(), self._beat, generation)

    def _beat_s(self) -> float:
        env = self._agent.env
        return env.members.heartbeat_s * (0.8 + 0.4 * env.world.dice.random())

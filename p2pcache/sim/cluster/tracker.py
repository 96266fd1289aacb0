"""The tracker in virtual time: the real decider, with messages instead of WebSockets."""

from collections.abc import Callable, Mapping
from typing import Any

from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Close, Output, ReadRun, Send
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.settings import DIAL_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.silence import DOUBT_S
from p2pcache.core.settings import LeaseSettings
from p2pcache.ids import NodeId
from p2pcache.sim.cluster.agent_link import AgentLink
from p2pcache.sim.cluster.environment import Environment
from p2pcache.sim.cluster.node_state import NodeState


class SimTracker:
    """One tracker, which can be killed and started again without memory."""

    def __init__(
        self,
        env: Environment,
        nodes: Mapping[NodeId, NodeState],
        leases: LeaseSettings,
        *,
        check_every: int = 0,
    ) -> None:
        """A tracker that doesn't run yet.

        Args:
            env: what surrounds it.
            nodes: all nodes of the storm: those that it may dial back.
            leases: its settings.
            check_every: its invariants are checked after this many messages; 0: never.
        """
        self._env = env
        self._nodes = nodes
        self._leases = leases
        self._check_every = check_every
        self._mind: TrackerState | None = None
        self._links: dict[NodeId, AgentLink] = {}
        self._timer = float("inf")
        # What came while it was stopped; None: it runs.
        self._unread: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.side = 0  # of a partition
        self.word = WitnessReport.RIGHT  # its result when it reads a run itself
        self.heard = 0  # messages

    def start(self, notes: dict[str, list[int]] | None = None) -> None:
        """Start a process that knows nothing but the notes of the last one."""
        self._mind = TrackerState(
            epoch=self._env.world.dice.getrandbits(62),
            members=self._env.members,
            leases=self._leases,
            remembered=notes,
        )

    def die(self) -> None:
        """Killed: every connection breaks."""
        self._mind = self._unread = None
        for link in list(self._links.values()):
            self._env.world.after(self._env.latency_s, link.broken)
        self._links.clear()

    def freeze(self) -> None:
        """Stopped: connections stand, and nothing is read. Agents that look at it doubt it, each a little later."""
        self._unread = []
        world = self._env.world
        for link in self._links.values():
            world.after(DOUBT_S * (0.6 + 0.5 * world.dice.random()), link.doubt)

    def thaw(self) -> None:
        """It goes on, and reads what came meanwhile."""
        unread, self._unread = self._unread or [], None
        if self._mind is None:
            return
        now = self._env.world.now
        self._mind.on_stood_still(now)
        for link in self._links.values():
            self._env.post(self.side, link.side, link.believe)
        for what, args in unread:
            what(*args)
        self._perform(self._mind.tick(now))

    def _when_awake(self, what: Callable[..., None], *args: Any) -> None:
        if self._unread is None:
            what(*args)
        else:
            self._unread.append((what, args))

    @property
    def frozen(self) -> bool:
        """Whether it is stopped."""
        return self._unread is not None

    @property
    def mind(self) -> TrackerState | None:
        """The decider; None while it is dead."""
        return self._mind

    def reachable(self, agent: NodeState) -> bool:
        """Whether a connection can be made now."""
        return (
            self._mind is not None
            and not self.frozen
            and not self._env.between(agent.side, self.side)
        )

    def hear(self, link: AgentLink, message: m.ToTracker) -> None:
        """A message arrives."""
        self._when_awake(self._hear, link, message)

    def _hear(self, link: AgentLink, message: m.ToTracker) -> None:
        if self._mind is None or not link.connected:
            return
        self.heard += 1
        self._links[link.node] = link
        self._perform(self._mind.handle(link.node, message, self._env.world.now))

    def lost(self, node: NodeId) -> None:
        """A connection broke."""
        self._when_awake(self._lost, node)

    def _lost(self, node: NodeId) -> None:
        if self._mind is not None and self._links.pop(node, None) is not None:
            self._perform(self._mind.on_disconnected(node, self._env.world.now))

    def _perform(self, out: list[Output]) -> None:
        env, mind = self._env, self._mind
        for output in out:
            if isinstance(output, Dial):
                self._dial(output)
                continue
            if isinstance(output, ReadRun):
                env.world.after(env.first_byte_s(), self._when_awake, self._witness, mind, output)
                continue
            link = self._links.get(output.node)
            if link is None:
                continue
            if isinstance(output, Send):
                env.post(self.side, link.side, link.hear, link.generation, output.message)
            elif isinstance(output, Close):
                env.post(self.side, link.side, link.broken)
        if mind is None:
            return
        if self._check_every and self.heard % self._check_every == 0:
            mind.check()
        wake = mind.next_wakeup()
        if wake < self._timer:
            self._timer = wake
            env.world.at(wake, self._tick, wake)

    def _witness(self, mind: TrackerState | None, asked: ReadRun) -> None:
        if mind is not None and mind is self._mind:
            self._perform(mind.on_witness_report(asked, self.word, self._env.world.now))

    def _dial(self, dial: Dial) -> None:
        env, world, mind = self._env, self._env.world, self._mind
        node = self._nodes.get(dial.member.node)
        alive = node is not None and node.alive
        void = node is not None and alive and (node.hidden or env.between(node.side, self.side))
        wait_s = DIAL_S if void else 2 * env.latency_s
        reached = alive and not void

        def over() -> None:
            if mind is not None and mind is self._mind:
                self._perform(mind.on_dial_ended(dial, world.now, reached=reached))

        world.after(wait_s, self._when_awake, over)

    def _tick(self, armed_for: float) -> None:
        if armed_for != self._timer:
            return
        self._timer = float("inf")
        if self._mind is not None and not self.frozen:
            self._perform(self._mind.tick(self._env.world.now))

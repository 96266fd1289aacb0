"""A state machine over the tracker's state with agents that work, crash, lie about nothing and are split.

Laws: `check()` holds after each step; nobody is told to read what it has said to have; a run that is read
twice had no live holder that the tracker could know of; in the end everybody has everything.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Close, Notice, Output, PullEnded, ReadRun
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import LeaseSettings, MemberSettings

RUNS = 12
X = "ab" * 32
NODES = st.integers(1, 6)


class Agent:
    """The least that behaves like an agent towards the tracker."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.have = 0
        self.told = 0  # of it, to the tracker
        self.reading: set[int] = set()
        self.known: set[int] = set()
        self.connected = False
        self.stopped = False

    def state(self) -> m.SwarmState:
        self.told = self.have
        complete = self.have == bitset.full(RUNS)
        bits = b"" if complete else bitset.to_bytes(self.have, RUNS)
        credit = 0 if complete or self.stopped else 2
        return m.SwarmState(
            X, RUNS, bits, complete, credit, tuple(sorted(self.reading)), tuple(sorted(self.known))
        )


class TrackerMachine(RuleBasedStateMachine):
    @initialize(epoch=st.integers(0, 2**63 - 1))
    def start(self, epoch: int) -> None:
        self.now = 0.0
        self.epoch = epoch
        self.agents = {n: Agent(n) for n in range(1, 7)}
        self.dials: list[Dial] = []
        self.tracking = self.fresh(epoch)

    def fresh(self, epoch: int) -> TrackerState:
        return TrackerState(
            epoch=epoch,
            members=MemberSettings(),
            leases=LeaseSettings(in_flight=4, most_in_flight=4),
        )

    def take(self, out: list[Output]) -> None:
        todo = list(out)
        while todo:
            output = todo.pop(0)
            if isinstance(output, Dial):
                self.dials.append(output)
                continue
            if isinstance(output, PullEnded | Notice):
                continue
            agent = self.agents[output.node]
            if not agent.connected:
                continue
            if isinstance(output, Close):
                agent.connected = False
                todo += self.tracking.on_disconnected(output.node, self.now)
                continue
            if isinstance(output, ReadRun):
                todo += self.tracking.on_witness_report(output, WitnessReport.NONE, self.now)
                continue
            todo += self.deliver(agent, output.message)

    def deliver(self, agent: Agent, message: m.ToAgent) -> list[Output]:
        match message:
            case m.Grant(_, _, runs):
                for run in runs:
                    assert not agent.told >> run & 1, run
                    assert run not in agent.reading, run
                agent.reading.update(run for run in runs if not agent.have >> run & 1)
                had = tuple(run for run in runs if agent.have >> run & 1)
                if had:  # from a neighbour just now
                    agent.told |= bitset.of(had)
                    return self.say(agent, m.LeaseReport(X, self.epoch, done=had))
            case m.Revoke(_, runs):
                agent.reading.difference_update(runs)
            case m.Swarm(_, _, full, joined, left):
                agent.known = (set() if full else agent.known) | {x.node for x in joined}
                agent.known -= set(left)
            case m.Poll():
                return self.say(agent, m.Heartbeat(swarms=(agent.state(),)))
            case m.Stop():
                agent.stopped = True
                agent.reading.clear()
        return []

    def say(self, agent: Agent, message: m.ToTracker) -> list[Output]:
        return self.tracking.handle(agent.node, message, self.now)

    def connect(self, agent: Agent) -> None:
        agent.connected = True
        self.take(
            self.say(agent, m.Announce(f"10.0.0.{agent.node}:1", "1", swarms=(agent.state(),)))
        )

    @rule(node=NODES)
    def comes(self, node: int) -> None:
        if not self.agents[node].connected:
            self.connect(self.agents[node])

    @rule(node=NODES)
    def crashes_and_loses_all(self, node: int) -> None:
        was = self.agents[node].connected
        self.agents[node] = Agent(node)
        if was:
            self.take(self.tracking.on_disconnected(node, self.now))

    @rule(node=NODES)
    def connection_breaks(self, node: int) -> None:
        if self.agents[node].connected:
            self.agents[node].connected = False
            self.take(self.tracking.on_disconnected(node, self.now))

    @rule(node=NODES, outcome=st.sampled_from(["done", "done", "done", "failed", "returned"]))
    def lease_ends(self, node: int, outcome: str) -> None:
        agent = self.agents[node]
        if not agent.reading:
            return
        run = min(agent.reading)
        agent.reading.remove(run)
        if outcome == "done":
            agent.have |= 1 << run
            agent.told |= agent.connected << run
        if agent.connected:
            ends: dict[str, tuple[int, ...]] = {"done": (), "failed": (), "returned": ()} | {
                outcome: (run,)
            }
            report = m.LeaseReport(
                X, self.epoch, done=ends["done"], failed=ends["failed"], returned=ends["returned"]
            )
            self.take(self.say(agent, report))

    @rule(src=NODES, dst=NODES)
    def gossip(self, src: int, dst: int) -> None:
        """One run goes from peer to peer; the tracker hears of it at a heartbeat."""
        missing = self.agents[src].have & ~self.agents[dst].have
        if missing and src != dst:
            self.agents[dst].have |= missing & -missing

    @rule(node=NODES)
    def beats(self, node: int) -> None:
        agent = self.agents[node]
        if agent.connected:
            self.take(self.say(agent, m.Heartbeat(swarms=(agent.state(),))))

    @rule(node=NODES, run=st.integers(0, RUNS - 1))
    def is_stuck(self, node: int, run: int) -> None:
        agent = self.agents[node]
        if agent.connected and not agent.have >> run & 1:
            self.take(self.say(agent, m.Stuck(X, (run,))))

    @rule(which=st.integers(0, 50), reached=st.booleans())
    def dial_ends(self, which: int, *, reached: bool) -> None:
        if self.dials:
            dial = self.dials.pop(which % len(self.dials))
            self.take(self.tracking.on_dial_ended(dial, self.now, reached=reached))

    @rule(node=NODES)
    def leaves(self, node: int) -> None:
        agent = self.agents[node]
        if agent.connected:
            self.take(self.say(agent, m.Leaving()))
            self.agents[node] = Agent(node)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.tracking.tick(self.now))

    @rule(epoch=st.integers(0, 2**63 - 1))
    def tracker_restarts(self, epoch: int) -> None:
        self.epoch = epoch
        self.tracking = self.fresh(epoch)
        self.dials.clear()
        for agent in self.agents.values():
            agent.connected = False

    @invariant()
    def holds(self) -> None:
        self.tracking.check()

    def teardown(self) -> None:
        """From any state, agents that behave get everything: stuck runs are introduced or read."""
        if not hasattr(self, "agents"):
            return
        for agent in self.agents.values():
            agent.stopped = False
        for _ in range(200):
            for agent in self.agents.values():
                if not agent.connected:
                    self.connect(agent)
                for run in sorted(agent.reading):
                    agent.reading.discard(run)
                    agent.have |= 1 << run
                    agent.told |= 1 << run
                    self.take(self.say(agent, m.LeaseReport(X, self.epoch, done=(run,))))
                if agent.connected:
                    self.take(self.say(agent, m.Heartbeat(swarms=(agent.state(),))))
            everything = 0
            for agent in self.agents.values():
                everything |= agent.have
            if everything == bitset.full(RUNS):
                return
            self.now += 2.0
            self.take(self.tracking.tick(self.now))
        raise AssertionError([f"{agent.have:b}" for agent in self.agents.values()])


TrackerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTracker = TrackerMachine.TestCase

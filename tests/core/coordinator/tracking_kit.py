"""A tracker's state with a clock, and what each node was sent."""

from collections.abc import Iterable
from typing import TypeVar

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Close, Event, Notice, Output, PullEnded, ReadRun, Send
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import LeaseSettings, MemberSettings

RUNS = 32
X, Y = "ab" * 32, "cd" * 32
EPOCH = 12345
M = TypeVar("M")


class World:
    """A tracker, its clock, and what each node was sent."""

    def __init__(
        self, remembered: dict[str, list[int]] | None = None, members: MemberSettings | None = None,
        most_in_flight: int = 128,
    ) -> None:  # fmt: skip
        self.now = 1000.0
        self.tracking = TrackerState(
            epoch=EPOCH, members=members or MemberSettings(), remembered=remembered, origin="s3://m",
            leases=LeaseSettings(in_flight=16, most_in_flight=most_in_flight),
        )  # fmt: skip
        self.sent: list[tuple[int, m.ToAgent]] = []
        self.closed: list[int] = []
        self.dials: dict[int, Dial] = {}  # the last of each node
        self.word: WitnessReport | None = (
            WitnessReport.NONE
        )  # what the tracker finds when it reads itself; None: it reads yet
        self.reads: list[ReadRun] = []  # that it was asked for
        self.spoken: list[Notice] = []
        self.told: list[Output] = []  # what people should know of pulls, liars and stopped models

    def take(self, out: list[Output]) -> None:
        for output in out:
            match output:
                case Send(_, m.Swarm(digest=m.EVERYBODY)):
                    pass
                case Send(node, message):
                    self.sent.append((node, message))
                case Close(node, _):
                    self.closed.append(node)
                case Dial():
                    self.dials[output.member.node] = output
                case Notice(Event.DOUBTED):
                    self.spoken.append(output)
                case PullEnded() | Notice(Event.SHUNNED | Event.STOPPED):
                    self.told.append(output)
                case ReadRun():
                    self.reads.append(output)
                    if self.word is not None:
                        self.witness(output, self.word)
        self.tracking.check()

    def witness(self, asked: ReadRun, word: WitnessReport) -> None:
        """The tracker has read a run itself."""
        self.take(self.tracking.on_witness_report(asked, word, self.now))

    def say(self, node: int, message: m.ToTracker) -> None:
        heard = m.decode_to_tracker(m.encode(message))
        self.take(self.tracking.handle(node, heard, self.now))

    def wait(self, seconds: float, alive: Iterable[int] = ()) -> None:
        """Time passes; these nodes go on sending heartbeats that say nothing."""
        end = self.now + seconds
        beats = self.now + 2.0
        while True:
            due = self.tracking.next_wakeup()
            step = min(end, beats, max(self.now, due))
            self.now = step
            self.take(self.tracking.tick(self.now))
            if self.now >= beats:
                beats += 2.0
                for node in alive:
                    self.say(node, m.Heartbeat())
            if self.now >= end:
                return

    def answer_polls(self, after_s: float = 0.1) -> None:
        """Members that are polled say what the tracker knows of them already."""
        self.wait(after_s)
        polled = [node for node, message in self.sent if isinstance(message, m.Poll)]
        self.sent = [one for one in self.sent if not isinstance(one[1], m.Poll)]
        for node in polled:
            record = self.tracking.swarms[X].roster.members[node]
            said = state(record.have, record.credit, tuple(record.runs))
            self.say(node, m.Heartbeat(swarms=(said,)))

    def announce(self, node: int, *swarms: m.SwarmState, rack: str = "") -> None:
        self.say(node, m.Announce(f"10.0.0.{node}:7401", "1", rack, "", swarms))
        self.take(self.tracking.tick(self.now))  # its dial is due

    def join(self, node: int, have: int = 0, credit: int = 1, known: tuple[int, ...] = ()) -> None:
        self.announce(node)
        self.say(node, m.Enter(state(have, credit=credit, known=known)))

    def done(self, node: int, *runs: int, epoch: int = EPOCH) -> None:
        self.say(node, m.LeaseReport(X, epoch, done=runs))

    def got(self, node: int, kind: type[M]) -> list[M]:
        return [message for to, message in self.sent if to == node and isinstance(message, kind)]

    def granted(self, node: int) -> list[int]:
        return [run for grant in self.got(node, m.Grant) for run in grant.runs]

    def reading(self, node: int) -> list[int]:
        """The runs of a node's leases."""
        return sorted(self.tracking.swarms[X].roster.members[node].runs)

    def forget_mail(self) -> None:
        self.sent.clear()


def state(
    have: int = 0,
    credit: int = 0,
    leases: tuple[int, ...] = (),
    known: tuple[int, ...] = (),
    digest: str = X,
) -> m.SwarmState:
    complete = have == bitset.full(RUNS)
    bits = b"" if complete else bitset.to_bytes(have, RUNS)
    return m.SwarmState(digest, RUNS, bits, complete, credit, leases, known)


def members_of(world: World, node: int) -> set[int]:
    """The member list as `node` put it together from its mail."""
    members: set[int] = set()
    for message in world.got(node, m.Swarm):
        if message.full:
            members = set()
        members |= {member.node for member in message.joined}
        members -= set(message.left)
    return members

"""All that the tracker knows of one member of one swarm: one record, which is dropped when the member leaves.

What holds over all swarms (whether the tracker could dial a node) is in the node's record of `dialback`.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from p2pcache.core.membership.running_pull import RunningPull
from p2pcache.core.protocol.messages import Member
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet

Place = tuple[str, str]
"""A site and one of its racks."""


class Standing(Enum):
    """Whether what a member has counts for the others."""

    ORDINARY = auto()
    DELIVERS_NOTHING = auto()  # members asked it in vain: what it had then doesn't count
    BANNED = auto()  # it sent wrong bytes: nothing that it has counts


class Pace(Enum):
    """How a member's reads of the origin compare with the others'."""

    USUAL = auto()
    SLOW = auto()  # it rests: it gets a lease only when no other member may have it
    PROBATION = auto()  # its rest is over: it gets a lease only when all others are full


class Reach(Enum):
    """Whether others get at what a member has, as far as the tracker knows."""

    UNKNOWN = auto()
    SILENT = auto()  # it hasn't answered the tracker's dial yet
    REACHED = auto()  # it answered
    UNREACHED = auto()  # the dial failed, or members were sent to it in vain
    CUT_OFF = auto()  # it reaches nobody itself: it reads the origin for itself


STANDING_CHANGES = {
    Standing.ORDINARY: {Standing.DELIVERS_NOTHING, Standing.BANNED},
    Standing.DELIVERS_NOTHING: {Standing.ORDINARY, Standing.BANNED},
    Standing.BANNED: {Standing.ORDINARY},  # when it announces itself anew
}
PACE_CHANGES = {
    Pace.USUAL: {Pace.USUAL, Pace.SLOW},
    Pace.SLOW: {Pace.SLOW, Pace.PROBATION, Pace.USUAL},
    Pace.PROBATION: {Pace.SLOW, Pace.USUAL},
}


@dataclass(slots=True)
class Complaints:
    """Which members complained of one."""

    blamed_by: set[NodeId] = field(default_factory=set)  # bearers that got wrong bytes from it
    unreached_by: set[NodeId] = field(default_factory=set)  # bearers that were sent to it in vain
    unserved: set[NodeId] = field(default_factory=set)  # members to which it delivers nothing


@dataclass(slots=True, eq=False)
class MemberRecord:
    """One member of one swarm. Times are the tracker's monotonic seconds.

    `check` asserts what holds for one record; the owners of indexes check that these agree with the records.
    """

    member: Member
    node: NodeId = field(init=False)
    place: Place = field(init=False)
    # What it has (`roster`).
    have: RunSet = 0  # as last told; empty while it is banned
    discounted: RunSet = 0  # runs that count for nothing: all that a banned member says it has
    standing: Standing = Standing.ORDINARY
    pulls_all: bool = False  # it fetches the whole model
    degree: int = 0  # how often it was handed out, or told a neighbour
    # What it reads (`leases.readers`).
    credit: int = 0  # leases that it works on at once
    wanted: RunSet = ALL  # runs that it has use for
    runs: set[RunIndex] = field(default_factory=set)  # of its leases
    failures: int = 0  # failed reads in a row
    rests_until: float = 0.0  # after the last of them
    reading_place: Place | None = None  # its place when it began to read: there its leases count
    newest_done: float = -inf  # the start of the youngest lease that it has ended
    # How quickly it reads (`leases.slow_readers`).
    pace: Pace = Pace.USUAL
    reads: float = 0.0  # number of its reads, faded
    read_s: float = 0.0  # the seconds that they took, faded alike
    verdicts: int = 0  # how often in a row it was found slow
    verdict_at: float = -inf  # the last time
    slow_until: float = 0.0
    # Whether others get at it (`leases.readers`, `coordinator.stuck_runs`).
    hidden_until: float = 0.0  # complaints count until then
    excused_until: float = 0.0  # it may read though others don't get at it
    silent_until: float = 0.0  # until then it is DELIVERS_NOTHING
    introduced_in_vain: float = -inf  # when it was last sent to holders that didn't help
    read_again: int = 0  # runs that were to be read again for it then
    storage_doubted: bool = False  # people were told that it read wrong bytes
    figures: tuple[str, int, tuple[int, ...]] = ("", 0, ())  # for people: label, bytes, bytes taken
    pull: RunningPull | None = (
        None  # for people: while it fetches the whole model, as it says itself
    )
    complaints: Complaints | None = None  # None: nobody ever complained

    def __post_init__(self) -> None:
        self.move(self.member)

    def move(self, member: Member) -> None:
        """It is where this says from now on."""
        self.member, self.node = member, member.node
        self.place = member.site, member.rack

    @property
    def delivers(self) -> RunSet:
        """The runs that it has and gives to others, as last told."""
        return self.have & ~self.discounted

    @property
    def says(self) -> RunSet:
        """The runs that it says it has, whether or not they count."""
        return self.have | self.discounted if self.standing is Standing.BANNED else self.have

    def complain(self) -> Complaints:
        """The complaints, to add one."""
        if self.complaints is None:
            self.complaints = Complaints()
        return self.complaints

    def change_standing(self, standing: Standing) -> None:
        """Whether what it has counts is seen in another way."""
        assert standing in STANDING_CHANGES[self.standing], (self.standing, standing)
        self.standing = standing

    def change_pace(self, pace: Pace) -> None:
        """Its reads are seen in another way."""
        assert pace in PACE_CHANGES[self.pace], (self.pace, pace)
        self.pace = pace

    def check(self) -> None:
        """Assert what holds for one member."""
        if self.standing is Standing.BANNED:
            assert not self.have
        if self.standing is Standing.ORDINARY:
            assert not self.discounted
        assert (self.pace is Pace.USUAL) == (not self.verdicts)
        assert self.credit >= 0

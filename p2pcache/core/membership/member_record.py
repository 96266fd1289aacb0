"""All that the tracker knows of one member of one swarm until it leaves. Dials hold over all (`reachability`)."""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from p2pcache.core.protocol.messages import Member
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet

Place = tuple[str, str]
"""A site and one of its racks."""


class Reach(Enum):
    """Whether others get at what a member has, as far as the tracker knows (`reachability`)."""

    UNKNOWN = auto()
    REACHABLE = auto()  # it answered the tracker's dial
    SILENT = auto()  # its first dial is under way
    UNREACHABLE = auto()  # the dial failed, or members complain, or it is banned


@dataclass(slots=True, eq=False)
class MemberRecord:
    """One member of one swarm. Times are the tracker's monotonic seconds."""

    member: Member
    node: NodeId = field(init=False)
    place: Place = field(init=False)
    # What it has (`roster`).
    have: RunSet = 0  # as last told
    pulls_all: bool = False  # it fetches the whole model
    degree: int = 0  # how often it was handed out, or told a neighbour
    # What it reads (`leases.readers`).
    credit: int = 0  # leases that it works on at once
    wanted: RunSet = ALL  # runs that it has use for
    runs: set[RunIndex] = field(default_factory=set)  # of its leases
    failures: int = 0  # failed reads in a row
    lags: bool = False  # it got far fewer runs of late than others
    # Reads of all members that had ended, and runs that it had, when its lag was looked at last.
    judged: tuple[int, int] | None = None
    failed_until: float = 0.0  # of its rest after a failed read; 0: it has none
    slow_until: float = 0.0  # of its rest for slow reads, the later one of two; 0: it has none
    reads: float = 0.0  # number of its reads, faded
    read_s: float = 0.0  # the seconds that they took, faded alike
    # Whether others get at it (`reachability`).
    reach: Reach = Reach.UNKNOWN
    verdict_until: float = 0.0  # of a reach that doesn't follow from dials alone; inf: it is banned
    complained_by: frozenset[NodeId] = frozenset()  # members that wait in vain for what it has
    blamed_by: frozenset[NodeId] = frozenset()  # bearers that got wrong bytes from it
    # What it waits for in vain (`coordinator.stuck_runs`).
    introduced: RunSet = 0  # runs whose holders it was told
    told: frozenset[NodeId] = frozenset()  # these holders
    introduced_at: float = -inf
    read_again: int = 0  # runs that were to be read again for it the last time

    def __post_init__(self) -> None:
        self.move(self.member)

    def move(self, member: Member) -> None:
        """The node has this address and place from now on."""
        self.member, self.node = member, member.node
        self.place = member.site, member.rack

    @property
    def rests_until(self) -> float:
        """When the rest that it has now is over."""
        return self.failed_until or self.slow_until

    @property
    def slow(self) -> bool:
        """Whether it gets a lease only when no other member may have it, since its reads or its link are slow."""
        return self.lags or self.slow_until > 0.0

    @property
    def counts(self) -> bool:
        """Whether others get what it has, as far as the tracker knows."""
        return self.reach is not Reach.UNREACHABLE

    @property
    def void(self) -> bool:
        """Whether what it says it has counts for nothing, by the word of other members."""
        return self.verdict_until > 0.0

    @property
    def banned(self) -> bool:
        """Whether it is void for good, since it sent wrong bytes."""
        return self.verdict_until == inf

    @property
    def delivers(self) -> RunSet:
        """The runs that it has, unless its claims are void."""
        return 0 if self.void else self.have

"""The facts about a node that `p2pcache doctor` measures: a measurement, or the `Trouble` that prevented it."""

from collections.abc import Mapping
from typing import NamedTuple

STANDBY = "standby"  # a tracker's word for itself while another one is active


class Trouble(NamedTuple):
    """Why something couldn't be measured: an exit code and one line, advice after a semicolon."""

    code: int
    text: str


class Unmeasured(NamedTuple):
    """Something that can't be measured, or not by this user, which is no fault of the node."""

    why: str
    advice: str


class Key(NamedTuple):
    """How the daemon's port is guarded."""

    path: str  # of the key; "": there is none
    listen: str
    loopback: bool
    insecure: bool
    certificate: bool
    mode: int = 0
    blind: str = ""  # the agent's user, if it can't read the key
    privileged: bool = True  # the caller can see the agent's settings


class Certificate(NamedTuple):
    """This member's certificate, and warnings about it."""

    member: str
    warnings: tuple[str, ...]


class Cache(NamedTuple):
    """The cache directory."""

    path: str
    exists: bool
    mode: int
    owner: str
    writable: bool
    agent_runs: bool
    closed: str = ""  # a parent directory that users of containers can't enter


class Space(NamedTuple):
    """Space of a disk in bytes; pulls leave `kept` bytes free."""

    path: str
    free: int
    total: int
    kept: int


class Files(NamedTuple):
    """Limit of open files of a process."""

    limit: int
    whose: str


class Network(NamedTuple):
    """The interface of the address that peers dial."""

    interface: str
    advertised: str
    host: str
    loopback: bool
    speed_mbit: int  # 0: unknown
    mtu: int
    up: bool
    source: str  # the address from which the tracker is reached; "": it is on this host, or unknown


class Kernel(NamedTuple):
    """Bytes to which a connection's buffers grow, by the name of the kernel's setting."""

    buffers: Mapping[str, int]


class Clock(NamedTuple):
    """Seconds by which this clock is ahead of other clocks, by their names."""

    ahead_s: Mapping[str, float]
    synchronised: bool | None  # None: unknown


class Tracker(NamedTuple):
    """A tracker that accepted this node as a member."""

    url: str
    seconds: float
    role: str = ""  # "active" or "standby"; "": it doesn't say, as one of an older release, or didn't in time
    active: str = ""  # of a standby: URL of the active one; "": it knows none


class Trackers(NamedTuple):
    """The trackers that were looked at, by URL, with the address where a name has several; none: this node has none."""

    each: dict[str, Tracker | Trouble]

    @property
    def active(self) -> bool:
        """Whether one of them is active: it says so, or is the only one and doesn't say what it is."""
        found = [one for one in self.each.values() if isinstance(one, Tracker)]
        alone = len({name.partition(" ")[0] for name in self.each}) == 1
        words = ("active", "") if alone else ("active",)
        return any(one.role in words for one in found)

    @property
    def named(self) -> str:
        """The active one, as a standby names it; "": none does."""
        known = (one.active for one in self.each.values() if isinstance(one, Tracker))
        return next(filter(None, known), "")


class Origin(NamedTuple):
    """An origin that could be listed."""

    url: str  # "": none is known
    seconds: float
    empty: bool


class Agent(NamedTuple):
    """The agent at the socket."""

    address: str
    there: bool  # False: there is no socket, and the user named no address
    version: str
    ours: str
    reasons: tuple[str, ...]
    differs: tuple[str, ...] = ()  # its settings that differ from the examined ones, in words
    unreached: str = ""  # its address, if other nodes lately dialled it in vain


class Disk(NamedTuple):
    """Measured rates in bytes per second, durable writes and uncached reads."""

    path: str
    kind: str
    write: float
    read: float


Fact = (
    Key | Certificate | Cache | Space | Files | Network | Kernel | Clock | Trackers | Origin | Agent
    | Disk | Trouble | Unmeasured
)  # fmt: skip

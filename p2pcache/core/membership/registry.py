"""Which nodes are members of the cluster: addresses, places, signs of life, and ids that two processes have."""

from collections import OrderedDict
from dataclasses import dataclass, field

from p2pcache.core.membership.settings import MOST_DEPARTED, MOST_REPLACED
from p2pcache.core.membership.usage_ledger import PullEnd
from p2pcache.core.protocol.messages import Announce, Heartbeat, Member
from p2pcache.core.settings import MemberSettings
from p2pcache.ids import NodeId


@dataclass(slots=True)
class Node:
    """One member as the tracker knows it. Times are the tracker's monotonic seconds."""

    member: Member
    version: str
    since: float
    last_seen: float
    name: str = ""
    connected: bool = True
    load: int = 0
    free_bytes: int = 0
    cached_bytes: int = 0
    quota_bytes: int = 0  # of its cache; 0: none
    warms: bool = False  # it can be told to fetch a model
    tells: bool = False  # it can be asked what runs and what ended there
    keeps: bool = False  # it can be ordered to keep parts of models
    role: str = ""
    labels: tuple[str, ...] = ()
    room_bytes: int = 0  # that it can give to those parts
    link_bytes_s: int = 0  # 0: not known
    # Swarms that it is in, the one that it told of the longest ago in front, and the bytes that each costs here.
    digests: dict[str, int] = field(default_factory=dict)
    cost_bytes: int = 0  # their sum

    def charge(self, digest: str, cost: int, more: int, most: int) -> list[str]:
        """The node told of a swarm; returns those that the tracker must forget for it, the oldest first.

        Args:
            digest: of the swarm.
            cost: bytes that the swarm takes at least.
            more: bytes that come with each word about it.
            most: bytes that all swarms of a node may take.
        """
        before = self.digests.pop(digest, 0)
        self.digests[digest] = max(before, cost) + more
        self.cost_bytes += self.digests[digest] - before
        forgotten, excess = [], self.cost_bytes - most
        for oldest, bytes_ in self.digests.items():
            if excess <= 0 or oldest == digest:
                break
            forgotten.append(oldest)
            excess -= bytes_
        return forgotten

    def give_back(self, digest: str) -> None:
        """The node isn't in that swarm any more."""
        self.cost_bytes -= self.digests.pop(digest)


@dataclass(frozen=True, slots=True)
class LeftNode:
    """A node that was a member. `at`: the tracker's monotonic seconds."""

    member: Member
    name: str
    version: str
    at: float
    lost: bool  # it said no goodbye


class Registry:
    """Members by id. A member ends by leaving, by silence, or when a broken connection isn't renewed.

    Invariants: `_heard` holds all and only the connected members, the longest silent first;
    `_broken` all and only the others, the longest gone first; `departed` holds nodes that aren't members, the longest
    gone first.
    """

    def __init__(self, settings: MemberSettings) -> None:
        """No member yet."""
        self.nodes: dict[NodeId, Node] = {}
        self.departed: OrderedDict[NodeId, LeftNode] = OrderedDict()  # within `REMEMBERED_S`
        self.joined = self.left = self.lost = 0  # members, since the start
        self._settings = settings
        self._heard: OrderedDict[NodeId, float] = OrderedDict()
        self._broken: OrderedDict[NodeId, float] = OrderedDict()

    def on_announced(self, node: NodeId, said: Announce, now: float) -> Node:
        """A connection stands: of a new member, or of one that came back and says anew what it is."""
        member = Member(node, said.address, said.rack, said.site)
        record = self.nodes.get(node)
        if record is None:
            record = self.nodes[node] = Node(member, said.version, now, now)
            self.departed.pop(node, None)
            self.joined += 1
        record.member, record.version, record.name = member, said.version, said.name
        record.last_seen, record.connected, record.warms = now, True, said.warms
        record.tells, record.keeps = said.tells, said.keeps
        record.role, record.labels = said.role, said.labels
        record.room_bytes, record.link_bytes_s = said.room_bytes, said.link_bytes_s
        self._broken.pop(node, None)
        self._heard[node] = now
        self._heard.move_to_end(node)
        return record

    def on_sign_of_life(self, node: NodeId, now: float) -> Node | None:
        """A sign of life; None if this isn't a connected member (it must announce first)."""
        record = self.nodes.get(node)
        if record is None or not record.connected:
            return None
        record.last_seen = self._heard[node] = now
        self._heard.move_to_end(node)
        return record

    def on_heartbeat(self, node: NodeId, said: Heartbeat) -> None:
        """Take over what a heartbeat says about the node itself."""
        record = self.nodes[node]
        record.load = said.load
        record.free_bytes = said.free_bytes
        record.cached_bytes = said.cached_bytes
        record.quota_bytes = said.quota_bytes
        record.room_bytes = said.room_bytes or record.room_bytes

    def on_disconnected(self, node: NodeId, now: float) -> None:
        """A member's connection broke: it has `reconnect_grace_s` to come back."""
        record = self.nodes.get(node)
        if record is not None and record.connected:
            record.connected = False
            del self._heard[node]
            self._broken[node] = now

    def forget(self, node: NodeId, now: float, *, lost: bool) -> Node | None:
        """A member is gone for good; returns what was known of it.

        Args:
            node: its id.
            now: seconds.
            lost: it said no goodbye.
        """
        self._heard.pop(node, None)
        self._broken.pop(node, None)
        record = self.nodes.pop(node, None)
        if record is not None:
            self.departed[node] = LeftNode(record.member, record.name, record.version, now, lost)
            self.lost += lost
            self.left += not lost
            if len(self.departed) > MOST_DEPARTED:
                self.departed.popitem(last=False)
        return record

    def pull_end(self, node: NodeId) -> PullEnd | None:
        """How the pulls of a node that is gone have ended; None: it is a member, and tells that itself."""
        gone = self.departed.get(node)
        if gone is None:
            return None
        return PullEnd.LOST if gone.lost else PullEnd.LEFT

    def departed_since(self, since: float) -> dict[NodeId, LeftNode]:
        """Nodes that are gone since a time; those that went before are forgotten."""
        while self.departed and next(iter(self.departed.values())).at < since:
            self.departed.popitem(last=False)
        return dict(self.departed)

    def expired(self, now: float) -> list[NodeId]:
        """Members whose time is over; the caller forgets them."""
        gone = []
        for silent, limit_s in self._limits():
            for node, since in silent.items():
                if since + limit_s > now:
                    break
                gone.append(node)
        return gone

    def next_wakeup(self) -> float | None:
        """When the next member would expire."""
        ends = [
            next(iter(silent.values())) + limit_s for silent, limit_s in self._limits() if silent
        ]
        return min(ends, default=None)

    def check(self) -> None:
        """Assert the invariants."""
        connected = {node for node, record in self.nodes.items() if record.connected}
        assert set(self._heard) == connected
        assert set(self._broken) == set(self.nodes) - connected
        assert not self.departed.keys() & self.nodes.keys()
        for silent, _ in self._limits():
            times = list(silent.values())
            assert times == sorted(times)

    def _limits(self) -> tuple[tuple["OrderedDict[NodeId, float]", float], ...]:
        return (
            (self._heard, self._settings.expiry_s),
            (self._broken, self._settings.reconnect_grace_s),
        )


class ClonedIds:
    """Which of two live agents with one node id may be a member.

    A machine image, or a cache, that was copied gives two agents one id. Each would end the other's connection for
    ever. A restarted agent must take the place of its dead process at once, though, and no tracker can tell a dead
    process from a live one behind a connection that is still open. But a process that was replaced and comes back
    lives: then there are two, and the one that came back is refused.

    Each process draws a random number at its start. 0 stands for a release that draws none: it is always let in.

    Invariant: `_replaced` has no node that `_here` lacks.
    """

    def __init__(self) -> None:
        """No member yet."""
        self._here: dict[NodeId, int] = {}  # the process that is a member
        self._replaced: dict[NodeId, dict[int, None]] = {}  # its earlier ones, oldest first

    def admit(self, node: NodeId, instance: int) -> bool:
        """Whether a process may be a member; False: another one took its place and is still there.

        Args:
            node: its id.
            instance: the number that it drew.
        """
        here, replaced = self._here.get(node, 0), self._replaced.get(node, {})
        if instance and instance in replaced:
            return False
        if here and instance and here != instance:
            replaced = self._replaced.setdefault(node, {})
            replaced[here] = None
            if len(replaced) > MOST_REPLACED:
                del replaced[next(iter(replaced))]
        self._here[node] = instance
        return True

    def on_left(self, node: NodeId) -> None:
        """The member with this id is gone: the next process that comes may take its place."""
        self._here.pop(node, None)
        self._replaced.pop(node, None)

"""Which nodes are members of the cluster: addresses, places, signs of life, and ids that two processes have."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from p2pcache.core.membership.settings import MOST_NODES, MOST_REPLACED
from p2pcache.core.protocol.messages import Announce, Heartbeat, Member, SwarmState
from p2pcache.core.settings import MemberSettings
from p2pcache.ids import NodeId

_SILENT = Heartbeat()


@dataclass(slots=True)
class Node:
    """One node as the tracker knows it. Times are the tracker's monotonic seconds."""

    member: Member
    said: Announce  # without its swarms
    last_seen: float
    expires: float = inf  # when its membership ends if nothing is heard of it
    beat: Heartbeat = _SILENT  # the last one, without what it says of swarms and pulls
    room_bytes: int = 0  # what it can give to parts that it is ordered to keep
    connected: bool = True
    undialled: bool = False  # people were told that its dials fail
    gone_at: float = inf
    lost: bool = False  # it went without a goodbye
    # Swarms that it is in, the one that it told of the longest ago in front, and the bytes that each costs here.
    digests: dict[str, int] = field(default_factory=dict)
    cost_bytes: int = 0  # their sum
    # States from a long list that are yet to be taken in, `MAX_TOLD` at most; and whether it announced them.
    waiting: dict[str, tuple[SwarmState, bool]] = field(default_factory=dict)

    def charge(self, digest: str, cost: int, more: int) -> None:
        """The node told of a swarm, for which the tracker keeps `cost` bytes, and `more` for what this word names."""
        before = self.digests.pop(digest, 0)
        self.digests[digest] = max(before, cost) + more
        self.cost_bytes += self.digests[digest] - before


class Registry:
    """Members by id. A member ends by leaving, by silence, or when a broken connection isn't renewed.

    Invariants: no member expires before `look_at`; `departed` holds nodes that aren't members, the longest gone first.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self.departed: OrderedDict[NodeId, Node] = OrderedDict()
        self.left = self.lost = 0  # members, since the start
        self.look_at = inf  # when `expired` has something to do
        self._settings = settings

    def on_announced(self, node: NodeId, said: Announce, now: float) -> Node:
        """A connection stands: of a new member, or of one that came back and says anew what it is."""
        member = Member(node, said.address, said.rack, said.site)
        said = replace(said, swarms=())
        record = self.nodes.get(node)
        if record is None:
            record = self.nodes[node] = Node(member, said, now)
            self.departed.pop(node, None)
        record.member, record.said, record.connected = member, said, True
        record.room_bytes = said.room_bytes
        record.waiting.clear()
        self.on_sign_of_life(node, now)
        return record

    def on_sign_of_life(self, node: NodeId, now: float) -> Node | None:
        """A sign of life; None if this isn't a connected member (it must announce first)."""
        record = self.nodes.get(node)
        if record is None or not record.connected:
            return None
        record.last_seen = now
        self._set_end(record, now + self._settings.expiry_s)
        return record

    def on_heartbeat(self, node: NodeId, said: Heartbeat) -> None:
        """Take over what a heartbeat says about the node itself; a short one doesn't say all."""
        record = self.nodes[node]
        record.room_bytes = said.room_bytes or record.room_bytes
        disk = said if said.free_bytes or said.cached_bytes else record.beat
        record.beat = replace(
            said, swarms=(), ended=(),
            free_bytes=disk.free_bytes, cached_bytes=disk.cached_bytes, quota_bytes=disk.quota_bytes,
        )  # fmt: skip

    def on_disconnected(self, node: NodeId, now: float) -> Node | None:
        """A member's connection broke: it has `reconnect_grace_s` to come back."""
        record = self.nodes.get(node)
        if record is not None and record.connected:
            record.connected = False
            record.waiting.clear()
            self._set_end(record, now + self._settings.reconnect_grace_s)
        return record

    def forget(self, node: NodeId, now: float, *, lost: bool) -> Node | None:
        """A member is gone for good, without a goodbye if it is `lost`; returns what was known of it."""
        record = self.nodes.pop(node, None)
        if record is not None:
            record.gone_at, record.lost = now, lost
            record.waiting.clear()
            self.departed[node] = record
            self.lost += lost
            self.left += not lost
            if len(self.departed) > MOST_NODES:
                self.departed.popitem(last=False)
        return record

    def departed_since(self, since: float) -> dict[NodeId, Node]:
        """Nodes that are gone since a time; those that went before are forgotten."""
        while self.departed and next(iter(self.departed.values())).gone_at < since:
            self.departed.popitem(last=False)
        return dict(self.departed)

    def expired(self, now: float) -> list[NodeId]:
        """Members whose time is over, the first one in front; the caller forgets them. O(members), but seldom."""
        if now < self.look_at:
            return []
        over = sorted((one.expires, node) for node, one in self.nodes.items() if one.expires <= now)
        self.look_at = min((o.expires for o in self.nodes.values() if o.expires > now), default=inf)
        return [node for _, node in over]

    def check(self) -> None:
        """Assert the invariants."""
        assert all(record.expires >= self.look_at for record in self.nodes.values())
        assert not self.departed.keys() & self.nodes.keys()

    def _set_end(self, record: Node, end: float) -> None:
        record.expires = end
        self.look_at = min(self.look_at, end)


class ClonedIds:
    """Which of two live agents with one node id, from a copied machine image or cache, may be a member.

    Each would end the other's connection for ever. A restarted agent must take the place of its dead process at once,
    and no tracker can tell that from a live one behind an open connection. But a process that was replaced and comes
    back lives, so it is refused. Each process draws a number at its start; 0 stands for a release that draws none.
    """

    def __init__(self) -> None:
        self._processes: dict[NodeId, deque[int]] = {}  # that had each id; the last one is a member

    def admit(self, node: NodeId, instance: int) -> bool:
        """Whether the process that drew this number may be a member; False: another one took its place and is there."""
        if not instance:
            return True
        processes = self._processes.setdefault(node, deque(maxlen=MOST_REPLACED + 1))
        if instance in processes:
            return instance == processes[-1]
        processes.append(instance)
        return True

    def on_left(self, node: NodeId) -> None:
        """The member with this id is gone: the next process that comes may take its place."""
        self._processes.pop(node, None)

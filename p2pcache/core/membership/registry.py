"""Who is a member of the cluster: addresses, places, signs of life. Pure."""

from collections import OrderedDict
from dataclasses import dataclass, field

from p2pcache.core.protocol.messages import Announce, Heartbeat, Member
from p2pcache.core.settings import MemberSettings


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
    warms: bool = False  # it can be told to fetch a model
    digests: set[str] = field(default_factory=set)  # swarms that it is in


class Registry:
    """Members by id. A member ends by leaving, by silence, or when a broken connection isn't renewed.

    Invariants: `_heard` holds all and only the connected members, the longest silent first;
    `_broken` all and only the others, the longest gone first.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.nodes: dict[int, Node] = {}
        self._settings = settings
        self._heard: OrderedDict[int, float] = OrderedDict()
        self._broken: OrderedDict[int, float] = OrderedDict()

    def announce(self, node: int, said: Announce, now: float) -> Node:
        """A connection stands: a new member, or one that came back with fresh words."""
        member = Member(node, said.address, said.rack, said.site)
        record = self.nodes.get(node)
        if record is None:
            record = self.nodes[node] = Node(member, said.version, now, now)
        record.member, record.version, record.name = member, said.version, said.name
        record.last_seen, record.connected, record.warms = now, True, said.warms
        self._broken.pop(node, None)
        self._heard[node] = now
        self._heard.move_to_end(node)
        return record

    def heard(self, node: int, now: float) -> Node | None:
        """A sign of life; None if this isn't a connected member (it must announce first)."""
        record = self.nodes.get(node)
        if record is None or not record.connected:
            return None
        record.last_seen = self._heard[node] = now
        self._heard.move_to_end(node)
        return record

    def beat(self, node: int, said: Heartbeat) -> None:
        """Take over what a heartbeat says about the node itself."""
        record = self.nodes[node]
        record.load = said.load
        record.free_bytes = said.free_bytes
        record.cached_bytes = said.cached_bytes

    def disconnected(self, node: int, now: float) -> None:
        """Its connection broke: it has `reconnect_grace_s` to come back."""
        record = self.nodes.get(node)
        if record is not None and record.connected:
            record.connected = False
            del self._heard[node]
            self._broken[node] = now

    def forget(self, node: int) -> Node | None:
        """It is gone for good. Returns what was known."""
        self._heard.pop(node, None)
        self._broken.pop(node, None)
        return self.nodes.pop(node, None)

    def expired(self, now: float) -> list[int]:
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
        for silent, _ in self._limits():
            times = list(silent.values())
            assert times == sorted(times)

    def _limits(self) -> tuple[tuple["OrderedDict[int, float]", float], ...]:
        return (
            (self._heard, self._settings.expiry_s),
            (self._broken, self._settings.reconnect_grace_s),
        )

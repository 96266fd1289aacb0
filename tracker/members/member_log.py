"""Log lines and warnings about members: each node and address has a limited number, so that none fills the log."""

import logging
import time

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import NotAllowed
from p2pcache.ids import NodeId, format_node
from p2pcache.io.clock import Clock

_log = logging.getLogger(__name__)

LINES_EACH, LINES = Rate(0.1, 3), Rate(1, 20)  # log lines about one node or address, and about all
MOVES_EACH, MOVES = Rate(0.1, 6), Rate(2, 100)  # lines of members that come and go
TWIN_S = 60.0  # a warning of a twin lasts; a refused agent tries again within ten seconds
MOST_TWINS = 16  # warnings of twins at once


class MemberLog:
    """Tells operators what is wrong with members and with strangers that want to be members."""

    def __init__(self, tracking: TrackerState, clock: Clock) -> None:
        self.refused = 0  # connections that didn't become members
        self._tracking = tracking
        self._clock = clock
        self._of_strangers = RateLimit(LINES_EACH, LINES)
        self._of_members = RateLimit(LINES_EACH, LINES)  # strangers can't use these up
        self._moves = RateLimit(MOVES_EACH, MOVES)
        self._untold = 0  # lines of members that came and went which weren't written
        self._twins: dict[NodeId, tuple[float, str]] = {}  # when each was refused, and the warning

    def warnings(self) -> list[str]:
        """What an operator should look at: agents with one node id that were refused lately."""
        until = self._clock.now() - TWIN_S
        self._twins = {node: seen for node, seen in self._twins.items() if seen[0] > until}
        return [text for _, text in self._twins.values()]

    def on_twin(self, node: NodeId, member: str, other: str) -> None:
        """An agent was refused because a live member has its node id.

        Args:
            node: the id.
            member: address of the live member.
            other: address of the refused agent.
        """
        text = (
            f"two live agents have the same node id {format_node(node)}: the member at {member}, and one at {other} "
            "that is refused; a cache or a machine's image was copied: stop one of them, delete node-id in its cache "
            "dir and start it again"
        )
        self.refused += 1
        self._twins.pop(node, None)
        self._twins[node] = self._clock.now(), text
        if len(self._twins) > MOST_TWINS:
            del self._twins[next(iter(self._twins))]
        _log.log(self._level(node), "%s", text)

    def on_refusal(self, address: str, error: Exception) -> None:
        """A connection from an address didn't become a member."""
        self.refused += 1
        level = logging.DEBUG
        if isinstance(error, NotAllowed):
            wait = self._of_strangers.take(address, time.monotonic(), patience_s=0)
            level = logging.DEBUG if wait else logging.WARNING
        _log.log(level, "refused a member from %s: %s", address, error)

    def on_notice(self, notice: Notice) -> None:
        """People should know something of a member."""
        if notice.event is Event.JOINED:
            self._on_joined(notice.node)
        elif notice.event in (Event.LEFT, Event.LOST):
            self._on_departed(notice.node)
        elif notice.event is Event.UNREACHED:
            self._on_unreached(notice.node, notice.digest)
        elif notice.event is Event.DOUBTED:
            level, who = self._level(notice.node), format_node(notice.node)
            _log.log(level, "model %.12s, node %s: %s", notice.digest, who, notice.text)

    def _on_joined(self, node: NodeId) -> None:
        """A node is a member from now on."""
        record = self._tracking.registry.nodes.get(node)
        if record is not None:
            self._tell(
                node, "node %s joined", self._named(node, record.said.name, record.member.address)
            )

    def _on_departed(self, node: NodeId) -> None:
        """A node is a member no longer."""
        gone = self._tracking.registry.departed.get(node)
        if gone is not None:
            text = "node %s is lost: no sign of life" if gone.lost else "node %s left"
            self._tell(node, text, self._named(node, gone.said.name, gone.member.address))

    def _tell(self, node: NodeId, text: str, named: str) -> None:
        """Log at info; what isn't logged in a storm of members is counted with the next line."""
        if self._moves.take(format_node(node), time.monotonic(), patience_s=0):
            self._untold += 1
            _log.debug(text, named)
            return
        more = f" ({self._untold} more lines like it weren't written)" if self._untold else ""
        self._untold = 0
        _log.info(f"{text}%s", named, more)

    @staticmethod
    def _named(node: NodeId, name: str, address: str) -> str:
        return (
            f"{format_node(node)} ({name}) at {address}"
            if name
            else f"{format_node(node)} at {address}"
        )

    def on_dropped(self, node: NodeId, error: Exception) -> None:
        """A member's connection was closed because it broke the protocol."""
        _log.log(self._level(node), "dropped member %s: %s", format_node(node), error)

    def _on_unreached(self, node: NodeId, digest: str) -> None:
        """Others can't dial a member, or wait in vain for what it says it has."""
        record = self._tracking.registry.nodes.get(node)
        if record is None or not record.connected or not self._has_a_line(node):
            return  # it has left, which explains it; or there were too many lines
        who = f"node {format_node(node)} at {record.member.address}"
        if digest:
            _log.warning(
                "%s says that it has %.12s and members get nothing from it, so storage is read for them: is its port "
                "open between the nodes, does its disk hang, is its uplink full? (its agent's log; p2pcache doctor and "
                "p2pcache bench there)", who, digest,
            )  # fmt: skip
        else:
            _log.warning(
                "nobody reaches %s, so others read storage: is that port open between the nodes, and the address its "
                "own? (p2pcache doctor there; --advertise)", who,
            )  # fmt: skip

    def _level(self, node: NodeId) -> int:
        return logging.WARNING if self._has_a_line(node) else logging.DEBUG

    def _has_a_line(self, node: NodeId) -> bool:
        """Whether a warning about this member may be written: one that comes and goes would fill the log."""
        return not self._of_members.take(format_node(node), time.monotonic(), patience_s=0)

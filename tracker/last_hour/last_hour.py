"""What people should know of the last hour: which nodes came and went, which pulls ended how, how much flowed.

It has names, times, figures and exit codes, as the daemons' other views and metrics have them, and no text of an error:
strangers may read it.
"""

from collections.abc import Sequence

import msgspec

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Event, Notice, Output, PullEnded
from p2pcache.ids import NodeId, format_node
from p2pcache.io.clock import Clock
from p2pcache.tracker.last_hour.rows import HourRows
from p2pcache.tracker.last_hour.traffic import EVERY_S, HourTraffic, Totals

EVENTS, PULLS = 500, 1000  # rows: half a megabyte, or three if all names are as long as they may be
EVENTS_EACH, PULLS_EACH = 20, 50  # rows about one node
# Who asks for what is new gets so many rows of each kind at most, or all: the dear answer is one, and kept.
NEW_ROWS = 64


class LastHour:
    """The events and ended pulls of the last hour, and points of the cluster's traffic."""

    def __init__(self, tracking: TrackerState, clock: Clock) -> None:
        """Nothing has happened."""
        self._tracking = tracking
        self._clock = clock
        self._events = HourRows(EVENTS, EVENTS_EACH)
        self._pulls = HourRows(PULLS, PULLS_EACH)
        self._traffic = HourTraffic()

    def hear(self, output: Output) -> None:
        """The coordinator wants something done; what people should know is noted."""
        match output:
            case Notice(event, node, digest) if event is not Event.DOUBTED:
                self._note_event(event, node, digest)
            case PullEnded():
                self._note_pull(output)

    async def sample(self) -> None:
        """Note a point of the charts; call it every `EVERY_S`."""
        totals, swarms = self._tracking.totals(), self._tracking.swarms.values()
        self._traffic.note(
            Totals(self._clock.now(), totals["moved_peers"], totals["moved_origin"]),
            pulls=sum(len(swarm.ledger.pulls) for swarm in swarms),
            nodes=len(self._tracking.registry.nodes),
        )

    def wanted(self, events: int, pulls: int) -> tuple[int, int]:
        """The numbers after which rows are answered to somebody who has them up to these; 0: all.

        Args:
            events: number of the last event that he has.
            pulls: number of the last ended pull that he has.
        """
        near = (
            self._events.last - NEW_ROWS <= events <= self._events.last
            and self._pulls.last - NEW_ROWS <= pulls <= self._pulls.last
        )
        return (events, pulls) if near else (0, 0)

    def answer(self, events: int, pulls: int) -> bytes:
        """What happened, as JSON; the numbers are those of `wanted`."""
        now = self._clock.now()
        head = {
            "epoch": str(self._tracking.epoch), "now": round(self._clock.wall(), 3), "every_s": EVERY_S,
            "last_event": self._events.last, "last_pull": self._pulls.last,
            "traffic": self._traffic.points(now),
        }  # fmt: skip
        return b'%s,"events":%s,"pulls":%s}' % (
            msgspec.json.encode(head)[:-1], _list(self._events.after(events, now)),
            _list(self._pulls.after(pulls, now)),
        )  # fmt: skip

    def _note_event(self, event: Event, node: NodeId, digest: str) -> None:
        swarm = self._tracking.swarms.get(digest)
        row = {
            "number": self._events.last + 1, "at": self._at(), "kind": event,
            "node": format_node(node), "name": self._name(node), "digest": digest,
            "label": swarm.ledger.label if swarm is not None else "",
        }  # fmt: skip
        self._events.note(node, msgspec.json.encode(row), self._clock.now())

    def _note_pull(self, pull: PullEnded) -> None:
        said, (peers, origin, local) = pull.said, pull.said.taken
        row = {
            "number": self._pulls.last + 1, "at": self._at(),
            "node": format_node(pull.node), "name": self._name(pull.node),
            "digest": said.digest, "label": said.label, "end": pull.end, "code": said.code,
            "share": round(pull.share, 4), "seconds": round(said.seconds, 1), "bytes": said.total_bytes,
            "bytes_peers": peers, "bytes_origin": origin, "bytes_local": local,
        }  # fmt: skip
        self._pulls.note(pull.node, msgspec.json.encode(row), self._clock.now())

    def _at(self) -> float:
        return round(self._clock.wall(), 1)

    def _name(self, node: NodeId) -> str:
        registry = self._tracking.registry
        record = registry.nodes.get(node) or registry.departed.get(node)
        return record.said.name if record is not None else ""


def _list(rows: Sequence[bytes]) -> bytes:
    return b"[%s]" % b",".join(rows)

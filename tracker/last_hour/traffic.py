"""Figures of the whole cluster over the last hour, as points in time."""

from collections import deque
from dataclasses import dataclass

EVERY_S = 20.0
POINTS = 180  # an hour


@dataclass(slots=True, frozen=True)
class Totals:
    """Bytes that members took since the tracker started, as they tell."""

    at: float
    peers: int
    origin: int


class HourTraffic:
    """One point every `EVERY_S`, the last hour of them."""

    def __init__(self) -> None:
        """No point yet."""
        self._points: deque[tuple[float, int, int, int, int]] = deque(maxlen=POINTS)
        self._before: Totals | None = None

    def note(self, totals: Totals, *, pulls: int, nodes: int) -> None:
        """Note a point; the first call only begins.

        Args:
            totals: bytes until now.
            pulls: that run.
            nodes: members.
        """
        before, self._before = self._before, totals
        if before is None:
            return
        passed_s = max(0.001, totals.at - before.at)
        peers, origin = totals.peers - before.peers, totals.origin - before.origin
        point = totals.at, round(peers / passed_s), round(origin / passed_s), pulls, nodes
        self._points.append(point)

    def points(self, now: float) -> list[tuple[int, int, int, int, int]]:
        """Points, the oldest first: age in seconds, bytes/s from peers, from storage, pulls, nodes."""
        return [(round(now - at), *rest) for at, *rest in self._points]  # type: ignore[misc]

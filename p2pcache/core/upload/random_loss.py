"""Whether a line loses packets that it has room for.

Most congestion controls take each lost packet for a full line and slow down. On a long line that loses one packet in a
hundred by itself they come down to a few Mbit/s, whatever it could carry. A full line has a queue, and a queue shows in
the round trip. So losses without a queue say that the line is bad and not full.
"""

from typing import NamedTuple

from p2pcache.core.upload.settings import (
    LOSSY_SHARE,
    LOSSY_WINDOWS,
    LOST_ROUND_TRIP_S,
    QUEUE_FREE,
    WINDOW_SEGMENTS,
)


class LossSample(NamedTuple):
    """What the kernel counted on one connection since it was opened."""

    segments: int  # with payload that were sent, first and repeated ones
    sent_again: int  # repeated ones among them
    rtt_s: float  # smoothed round trip of now
    min_rtt_s: float  # shortest round trip of the last minutes; 0: not known


class RandomLoss:
    """Watches one connection."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._segments = self._sent_again = 0  # counts when the present window began
        self._windows = 0  # lossy ones in a row

    def is_lossy(self, counts: LossSample) -> bool:
        """Whether the line lost packets without being full, some windows in a row; `counts`: of one connection."""
        segments = counts.segments - self._segments
        if segments < WINDOW_SEGMENTS:
            return False
        lost = counts.sent_again - self._sent_again
        self._segments, self._sent_again = counts.segments, counts.sent_again
        far = counts.min_rtt_s >= LOST_ROUND_TRIP_S
        empty = counts.rtt_s <= QUEUE_FREE * counts.min_rtt_s
        lossy = far and empty and lost >= LOSSY_SHARE * segments
        self._windows = self._windows + 1 if lossy else 0
        return self._windows >= LOSSY_WINDOWS

"""What pulls leave of a node's uplink, for requests that nobody waits for."""

from collections import deque
from collections.abc import Collection
from math import inf

from p2pcache.core.settings import USUAL_OF
from p2pcache.core.upload.settings import BESIDE, LEAST_BYTES, SPARE_BELOW
from p2pcache.ids import NodeId


class SpareUplink:
    """Whether the background may be served beside pulls.

    A link has room if the pulls that it serves have far less together than the quickest upload of late had: they are
    slow elsewhere. Where it has none, one upload in `BESIDE` goes beside them all the same. That one shows how quick
    the link is, and a pull that never ends doesn't stop the background for ever. One at a time goes beside pulls: more
    would make them slow, and so make room for still more.
    """

    def __init__(self) -> None:
        """Nothing is known of the link, so pulls need all of it."""
        self._recent: deque[tuple[NodeId, float]] = deque(maxlen=USUAL_OF)  # bytes per second
        self.passed = 0  # uploads of pulls since the last one of the background

    def on_upload_done(self, peer: NodeId, nbytes: int, took_s: float) -> None:
        """An upload was sent to its end; a small one says nothing of the link."""
        if nbytes >= LEAST_BYTES and took_s > 0:
            self._recent.append((peer, nbytes / took_s))

    def is_there(self, pulling: Collection[NodeId], behind: int) -> bool:
        """Whether an upload of the background may begin.

        `pulling` are those who are served, or wait, for a pull, `behind` counts the background that is under way.
        """
        if not pulling or behind:
            return not pulling
        last = dict(self._recent)
        used = sum(last.get(peer, inf) for peer in pulling)
        quickest = max((rate for _, rate in self._recent), default=0.0)
        return self.passed >= BESIDE or used < SPARE_BELOW * quickest

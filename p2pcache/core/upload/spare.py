"""What pulls leave of a node's uplink, for requests that nobody waits for."""

from collections import deque
from collections.abc import Collection
from math import inf

from p2pcache.core.settings import USUAL_OF
from p2pcache.core.upload.settings import BESIDE, LEAST_BYTES, SPARE_BELOW
from p2pcache.ids import NodeId


class SpareUplink:
    """Whether the background may be served beside pulls.

    A link has room if its pulls are slow for another reason: all of them together have far less than the quickest
    upload of late had. Where it has no room, one upload of the background follows each `BESIDE` uploads of pulls all
    the same. It shows how quick the link is, and a pull that never ends doesn't stop the background for ever. Only one
    upload of the background at a time goes beside pulls: more would make the pulls slow, and so make room for more.
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

        Args:
            pulling: peers of which a request for a pull is served or waits.
            behind: requests of the background that are served or wait.
        """
        if not pulling or behind:
            return not pulling
        last = dict(self._recent)
        used = sum(last.get(peer, inf) for peer in pulling)
        quickest = max((rate for _, rate in self._recent), default=0.0)
        return self.passed >= BESIDE or used < SPARE_BELOW * quickest

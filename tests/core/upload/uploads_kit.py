"""Upload queues in a state that tests begin with."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.upload_queue import UploadQueue


def opened(slots: int) -> UploadQueue[int]:
    """A queue whose uplink turned out to be quick: all slots are open."""
    queued: UploadQueue[int] = UploadQueue(UploadSettings(slots=slots))
    for peer in range(1000, 1000 + slots):
        assert queued.offer(peer, peer)
        assert queued.start_next() == (peer, peer)
        queued.on_upload_ended(peer, peer, 1.0)
    return queued


def served(queue: UploadQueue[int], *peers: int) -> None:
    """Give each of these peers a slot, for a request with the peer's number."""
    for peer in peers:
        assert queue.offer(peer, peer)
        assert queue.start_next() == (peer, peer)

"""The background beside pulls: it gets what they leave of the uplink, and a little where they leave nothing."""

from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.settings import BESIDE
from p2pcache.core.upload.upload_queue import UploadQueue
from tests.core.upload.uploads_kit import opened

MIB = 1 << 20
PULL, OTHER, KEEPER = 1, 2, 3


def pulled(queue: UploadQueue[int], peer: int, took_s: float, times: int = 1) -> None:
    """A peer that pulls is served, and waits for its next run."""
    for _ in range(times):
        if peer not in queue._active:
            assert queue.offer(peer, peer)
            assert queue.start_next() == (peer, peer)
        queue.on_upload_ended(peer, peer, took_s, nbytes=MIB)
        assert queue.offer(peer, peer)
        assert queue.start_next() == (peer, peer)


def repairs(queue: UploadQueue[int], took_s: float = 1.0) -> bool:
    """Whether a node that makes a copy again is served now."""
    if not queue.offer(KEEPER, KEEPER, Priority.BACKGROUND):
        return False
    assert queue.start_next() == (KEEPER, KEEPER)
    queue.on_upload_ended(KEEPER, KEEPER, took_s, nbytes=MIB)
    return True


def test_a_pull_that_fills_the_link_leaves_nothing_but_one_upload_in_sixteen() -> None:
    queue = opened(7)
    pulled(queue, PULL, 1.0, BESIDE)
    assert repairs(queue)
    assert not repairs(queue)
    pulled(queue, PULL, 1.0, BESIDE - 1)
    assert not repairs(queue)
    pulled(queue, PULL, 1.0)
    assert repairs(queue)
    queue.check()


def test_where_nobody_pulls_the_background_has_all() -> None:
    queue = opened(7)
    assert all(repairs(queue) for _ in range(5))


def test_a_pull_that_is_slow_elsewhere_stops_nothing() -> None:
    queue = opened(7)
    pulled(queue, PULL, 1.0, BESIDE)
    assert repairs(queue, 0.01), "the link carries a hundred times more"
    assert all(repairs(queue, 0.01) for _ in range(5))


def test_pulls_that_share_the_link_fill_it_together() -> None:
    queue = opened(7)
    pulled(queue, PULL, 1.0)  # alone
    assert queue.offer(OTHER, OTHER)
    assert queue.start_next() == (OTHER, OTHER)
    for peer in (PULL, OTHER):
        queue.on_upload_ended(peer, peer, 2.0, nbytes=MIB)
        assert queue.offer(peer, peer)
        queue.start_next()
    assert not repairs(queue)
    queue.on_peer_gone(OTHER)
    queue.on_upload_ended(OTHER, OTHER)
    queue.on_peer_gone(PULL)
    queue.on_upload_ended(PULL, PULL)
    assert repairs(queue)


def test_the_background_doesn_t_make_room_for_itself() -> None:
    """A pull beside three of its uploads is slow by them, not elsewhere."""
    queue = opened(7)
    pulled(queue, OTHER, 1.0)
    queue.on_upload_ended(OTHER, OTHER, 1.0, nbytes=MIB)
    for peer in range(10, 16):
        assert queue.offer(peer, peer, Priority.BACKGROUND)
        assert queue.start_next() == (peer, peer)
    pulled(queue, PULL, 7.0)
    for peer in range(10, 16):
        assert not repairs(queue)
        queue.on_upload_ended(peer, peer, 7.0, nbytes=MIB)
    assert repairs(queue, 2.0), "its last upload was slow"
    pulled(queue, PULL, 2.0)
    assert not repairs(queue), "and isn't any more"


def test_a_warm_isn_t_behind_so_far() -> None:
    queue = opened(7)
    pulled(queue, PULL, 1.0)
    assert queue.offer(KEEPER, KEEPER, Priority.WARM)


def test_small_uploads_say_nothing_of_the_link() -> None:
    queue = opened(7)
    assert queue.offer(OTHER, OTHER)
    assert queue.start_next() == (OTHER, OTHER)
    queue.on_upload_ended(OTHER, OTHER, 1e-5, nbytes=4096)  # 400 MB/s, into a buffer
    pulled(queue, PULL, 1.0)
    assert not repairs(queue)

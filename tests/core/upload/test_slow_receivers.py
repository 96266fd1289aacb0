"""Slow receivers take no slot from the others."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.upload_queue import UploadQueue
from tests.core.upload.uploads_kit import opened, served


def test_a_receiver_is_slow_before_its_upload_is_over() -> None:
    queue = opened(slots=7)
    served(queue, 101)
    queue.on_upload_ended(101, 101, 1.0)  # each upload has taken a second
    served(queue, *range(1, 8))
    queue.mark_slow_receivers(10.0)
    queue.mark_slow_receivers(13.0)
    assert not queue.offer(8, 8)
    queue.mark_slow_receivers(13.1)
    assert queue.offer(8, 8)
    assert queue.start_next() == (8, 8), "all seven slots are free for peers that aren't slow"
    queue.check()


def test_a_slow_receiver_that_is_gone_counts_no_more() -> None:
    queue = opened(slots=7)
    served(queue, 101)
    queue.on_upload_ended(101, 101, 1.0)
    served(queue, 1)
    queue.mark_slow_receivers(10.0)
    queue.mark_slow_receivers(20.0)
    assert queue._slow.peers == {1}
    queue.on_peer_gone(1)
    queue.mark_slow_receivers(21.0)
    queue.on_upload_ended(1, 1)
    assert not queue._slow.peers


def test_nobody_is_slow_before_some_uploads_have_ended() -> None:
    queue: UploadQueue[int] = UploadQueue(UploadSettings(slots=1))
    served(queue, 1)
    queue.mark_slow_receivers(0.0)
    queue.mark_slow_receivers(1e6)
    assert not queue.offer(2, 2), "nobody is slow yet, so the one slot is taken"


def test_a_slow_receiver_takes_no_slot_from_the_others() -> None:
    queue: UploadQueue[int] = UploadQueue(UploadSettings(slots=2))

    def served(peer: int, took_s: float) -> None:
        assert queue.offer(peer, 1)
        assert queue.start_next() == (peer, 1)
        queue.on_upload_ended(peer, 1, took_s)
        queue.check()

    for peer in (1, 2) * 5:
        served(peer, 1.0)
    served(3, 10.0)
    for peer in (3, 1, 2):
        assert queue.offer(peer, 10)
        assert queue.start_next() == (peer, 10), "two slots, and the slow receiver beside them"
    assert not queue.offer(4, 10)
    queue.check()
    queue.on_upload_ended(3, 10, 1.0)  # it has recovered
    assert not queue.offer(3, 11)
    queue.on_upload_ended(1, 10, 1.0)
    assert queue.offer(3, 11)
    queue.check()


def test_receivers_are_slow_beside_others_and_no_more_of_them_than_slots() -> None:
    queue: UploadQueue[int] = UploadQueue(UploadSettings(slots=2))
    for peer in range(10):
        assert queue.offer(peer, 1)
        queue.start_next()
        queue.on_upload_ended(peer, 1, 10.0)
    assert not queue._slow.peers, "all uploads take equally long"
    for _ in range(20):
        assert queue.offer(1, 1)
        queue.start_next()
        queue.on_upload_ended(1, 1, 1.0)
    for peer in range(10, 15):
        assert queue.offer(peer, 1)
        assert queue.start_next() == (peer, 1)
        queue.on_upload_ended(peer, 1, 10.0)
    assert queue._slow.peers == {10, 11}
    assert queue.offer(10, 2)
    assert queue.start_next() == (10, 2)
    queue.on_upload_ended(10, 2, 10.0)
    assert queue._slow.peers == {10, 11}, "it is still slow"
    queue.on_peer_gone(10)
    assert queue._slow.peers == {11}

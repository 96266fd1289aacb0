"""Peers that were told BUSY: when they are recalled, and who makes room for them."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.settings import FULL
from p2pcache.core.upload.upload_queue import UploadQueue
from tests.core.upload.uploads_kit import served

QUANTUM = UploadSettings().slots  # uploads, however few slots there are


def called(queue: UploadQueue[int]) -> list[int]:
    """The requests whose peers hear that there is room."""
    return [item for item, load in queue.recall(0.0) if load < FULL]


def crowded(*peers: int) -> UploadQueue[int]:
    """A queue whose two slots are taken, and which told these peers BUSY."""
    queue: UploadQueue[int] = UploadQueue(UploadSettings(slots=2))
    served(queue, 101, 102)
    for peer in peers:
        assert not queue.offer(peer, 10 * peer)
    assert called(queue) == []
    return queue


def test_refused_peers_are_recalled_once_the_oldest_first() -> None:
    queue = crowded(1, 2, 1, 3, 4, 5, 6, 7)
    queue.on_upload_ended(101, 101)
    assert called(queue) == [10, 20], "two peers for each free slot"
    assert queue.offer(101, 103)
    queue.start_next()
    queue.on_upload_ended(101, 103)
    queue.on_upload_ended(102, 102)
    assert called(queue) == [30, 40, 50, 60]
    assert called(queue) == [70]
    assert called(queue) == []


def test_a_slot_whose_first_peer_found_another_place_is_taken_by_the_second() -> None:
    """It stood empty until the next upload ended: three calls in four passed in a swarm of 100 nodes."""
    queue = crowded(1, 2, 3)
    queue.on_upload_ended(101, 101)
    assert called(queue) == [10, 20]
    assert queue.offer(2, 21)
    assert queue.start_next() == (2, 21)
    assert not queue.offer(1, 11), "it came second, and stands in line again"
    queue.on_upload_ended(102, 102)
    assert called(queue) == [30, 11]


def test_who_is_turned_away_again_hears_of_the_next_upload_that_was_sent() -> None:
    queue = crowded(1, 3, 2)
    assert not queue.offer(2, 21)
    assert not queue.offer(2, 22)
    assert queue.offer(101, 103)
    assert queue.offer(101, 104)
    queue.on_upload_ended(101, 101)
    assert queue.start_next() == (101, 103)
    assert queue.recall(1.0) == [], "it was broken off, so it says nothing"
    queue.on_upload_ended(101, 103, took_s=1.0)
    assert queue.start_next() == (101, 104)
    assert queue.recall(1.0) == [(22, FULL)], "the first refusal of a peer is no sign of a hang"
    assert not queue.offer(2, 23)
    assert queue.offer(101, 105)
    queue.on_upload_ended(101, 104, took_s=1.0)
    assert queue.start_next() == (101, 105)
    assert queue.recall(1.9) == [], "an older release asks again each time that it hears"
    queue.on_upload_ended(101, 105, took_s=1.0)
    assert queue.recall(2.1) == [(10, 1), (30, 1), (23, FULL)], (
        "one slot is free, and 2 stays in line"
    )


def test_nobody_is_recalled_for_a_slot_whose_next_request_waits() -> None:
    queue = crowded(1)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert called(queue) == []
    assert queue.start_next() == (101, 103)


def test_a_peer_that_was_admitted_or_is_gone_is_not_recalled() -> None:
    queue = crowded(1, 2, 3)
    queue.on_upload_ended(101, 101)
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_peer_gone(2)
    queue.on_upload_ended(102, 102)
    assert called(queue) == [30]


def test_warm_requests_are_not_recalled_nor_any_at_a_closed_queue() -> None:
    queue = crowded()
    assert not queue.offer(4, 40, Priority.WARM)
    assert not queue.offer(5, 50, Priority.BACKGROUND)
    queue.on_upload_ended(101, 101)
    assert called(queue) == []
    queue = crowded(1)
    queue.close()
    queue.on_upload_ended(101, 101)
    assert called(queue) == [], "nothing is admitted any more"


def turns(queue: UploadQueue[int], peers: tuple[int, ...], count: int) -> None:
    """Serve each of these `count` times more; its next request always waits when an upload ends."""
    for turn in range(count):
        for peer in peers:
            number = 1000 * (turn + 1) + peer
            assert queue.offer(peer, number), turn
            queue.on_upload_ended(peer, queue._active[peer][1])
            assert called(queue) == []
            assert queue.start_next() == (peer, number)


def test_a_served_peer_makes_room_after_its_quantum_and_stands_in_line() -> None:
    queue = crowded(1)
    turns(queue, (101, 102), QUANTUM)
    last = QUANTUM * 1000
    assert not queue.offer(101, 1), "its next request would keep the slot"
    queue.on_upload_ended(101, 101 + last)
    assert called(queue) == [10]
    assert not queue.offer(102, 2), "101 waits now"
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_upload_ended(102, 102 + last)
    assert called(queue) == [1], "101 comes before 102, which has just made room for it"
    assert queue.offer(101, 3)
    assert queue.start_next() == (101, 3)
    queue.check()


def test_after_it_was_turned_away_a_peer_has_a_quantum_again() -> None:
    queue = crowded(1)
    turns(queue, (101,), QUANTUM)
    assert not queue.offer(101, 1)
    queue.on_upload_ended(101, 101 + QUANTUM * 1000)
    assert called(queue) == [10]
    assert queue.offer(101, 2), "peer 1 didn't come"
    assert queue.start_next() == (101, 2)
    assert not queue.offer(1, 11)
    assert queue.offer(101, 3)


def test_a_slot_that_nobody_else_asked_for_is_kept_for_ever() -> None:
    queue = crowded()
    turns(queue, (101,), 3 * QUANTUM)
    assert not queue.offer(1, 10)
    assert queue.offer(101, 1), "uploads count from the moment at which somebody was turned away"


def test_an_urgent_request_makes_room_for_nobody() -> None:
    queue = crowded(1)
    turns(queue, (101,), QUANTUM)
    assert queue.offer(101, 1, Priority.URGENT)
    assert not queue.offer(101, 2)


def test_peers_hear_that_others_are_served_once_a_second_at_most() -> None:
    """Older releases ask again at each word, and a peer ends a connection that brings too many frames."""
    queue = crowded(1)
    words = 0
    for turn in range(1000):  # uploads, in ten seconds
        before, after = (1000 + turn, 1001 + turn) if turn else (101, 1001)
        assert queue.offer(101, after, Priority.URGENT)
        assert not queue.offer(1, turn)
        queue.on_upload_ended(101, before, took_s=0.01)
        assert queue.start_next() == (101, after)
        words += len(queue.recall(turn / 100))
    assert words == 10

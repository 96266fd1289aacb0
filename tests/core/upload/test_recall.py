"""Peers that were told BUSY: when they are recalled, and which peers yield to them."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.upload_queue import UploadQueue
from tests.core.upload.uploads_kit import opened, served


def crowded(*peers: int) -> UploadQueue[int]:
    """A queue whose two slots are taken, and which told these peers BUSY."""
    queue: UploadQueue[int] = UploadQueue(
        UploadSettings(slots=2, queue=0, per_peer=4, few_askers_places=0)
    )
    served(queue, 101, 102)
    for peer in peers:
        assert not queue.offer(peer, 10 * peer)
    assert queue.recall() == []
    return queue


def test_refused_peers_are_recalled_once_the_oldest_first() -> None:
    queue = crowded(1, 2, 1, 3)
    queue.on_upload_ended(101, 101)
    assert queue.recall() == [10]
    assert queue.offer(101, 103)
    queue.start_next()
    queue.on_upload_ended(101, 103)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [20, 30], "one peer for each free slot"
    assert queue.recall() == []


def test_nobody_is_recalled_for_a_slot_whose_next_request_waits() -> None:
    queue = crowded(1)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.recall() == []
    assert queue.start_next() == (101, 103)


def test_a_peer_that_was_admitted_or_is_gone_is_not_recalled() -> None:
    queue = crowded(1, 2, 3)
    queue.on_upload_ended(101, 101)
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_peer_gone(2)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [30]


def test_warm_requests_are_not_recalled_nor_any_at_a_closed_queue() -> None:
    queue = crowded()
    assert not queue.offer(4, 40, Priority.WARM)
    assert not queue.offer(5, 50, Priority.BACKGROUND)
    queue.on_upload_ended(101, 101)
    assert queue.recall() == []
    queue = crowded(1)
    queue.close()
    queue.on_upload_ended(101, 101)
    assert queue.recall() == [], "nothing is admitted any more"


def little_flows_at() -> UploadQueue[int]:
    """A queue with two open slots, for peers 101 and 102, since the uplink is unknown; 1 and 2 were told BUSY."""
    queue: UploadQueue[int] = UploadQueue(
        UploadSettings(slots=4, queue=0, per_peer=4, few_askers_places=0)
    )
    served(queue, 101, 102)
    for peer in (1, 2):
        assert not queue.offer(peer, 10 * peer), "there is no place to wait"
    return queue


def test_while_slots_are_closed_the_peer_served_last_yields_once() -> None:
    queue = little_flows_at()
    assert not queue.offer(101, 103), "its next request doesn't wait before those of the others"
    queue.on_upload_ended(101, 101)
    assert queue.recall() == [10]
    assert not queue.offer(101, 104)
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [20]
    assert not queue.offer(102, 105)
    assert queue.offer(102, 106), "nobody else was turned away meanwhile"
    queue.check()


def test_while_slots_are_closed_an_urgent_request_does_not_yield() -> None:
    queue = little_flows_at()
    queue.on_upload_ended(101, 101)
    assert queue.offer(101, 103, Priority.URGENT)
    assert queue.start_next() == (101, 103)
    assert queue.offer(101, 104, Priority.URGENT)
    queue.check()


def test_while_slots_are_closed_a_served_peer_stays_if_nobody_was_turned_away() -> None:
    queue = little_flows_at()
    queue.on_peer_gone(1)
    queue.on_peer_gone(2)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.start_next() == (101, 103)
    queue.on_upload_ended(101, 103)
    assert queue.offer(101, 104)


def test_while_all_slots_are_open_a_served_peer_stays_though_others_were_just_turned_away() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    assert not queue.offer(2, 20)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.start_next() == (101, 103)


def rounds(queue: UploadQueue[int], peers: tuple[int, ...], count: int) -> None:
    """Serve each of these `count` times more; its next request always waits when an upload ends."""
    for turn in range(count):
        for peer in peers:
            number = 1000 * (turn + 1) + peer
            assert queue.offer(peer, number)
            queue.on_upload_ended(peer, queue._active[peer][1])
            assert queue.recall() == []
            assert queue.start_next() == (peer, number)


def test_one_served_peer_yields_for_each_one_turned_away_two_rounds_ago() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    rounds(queue, (101, 102), 2)
    assert not queue.offer(2, 20), "turned away just now"
    assert not queue.offer(101, 103), "it yields its slot to peer 1"
    assert not queue.offer(101, 103), "it still yields when it asks again"
    assert queue.offer(102, 104), "one peer was turned away, so one peer yields"
    queue.check()
    queue.on_upload_ended(101, 101 + 2000)
    assert queue.recall() == [10]
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_upload_ended(102, 102 + 2000)
    assert queue.start_next() == (102, 104)
    assert queue.offer(1, 12), "it is served now and stays"
    queue.check()


def test_an_urgent_request_does_not_yield_to_one_turned_away_long_ago() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    rounds(queue, (101, 102), 2)
    assert queue.offer(101, 103, Priority.URGENT)
    assert not queue.offer(102, 104)

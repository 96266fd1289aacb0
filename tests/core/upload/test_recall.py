"""The upload queue when all places are taken: who is called, who stays, and who gives way to whom."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.upload_queue import UploadQueue
from tests.core.upload.uploads_kit import opened, served


def crowded(*peers: int) -> UploadQueue[int]:
    """Two slots are taken, and these peers were told BUSY."""
    queue: UploadQueue[int] = UploadQueue(
        UploadSettings(slots=2, queue=0, per_peer=4, few_askers_places=0)
    )
    served(queue, 101, 102)
    for peer in peers:
        assert not queue.offer(peer, 10 * peer)
    assert queue.recall() == []
    return queue


def test_who_was_told_busy_hears_of_a_free_slot_once_and_in_turn() -> None:
    queue = crowded(1, 2, 1, 3)
    queue.on_upload_ended(101, 101)
    assert queue.recall() == [10]
    assert queue.offer(101, 103)
    queue.start_next()
    queue.on_upload_ended(101, 103)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [20, 30], "one for each slot"
    assert queue.recall() == []


def test_nobody_is_called_for_a_slot_whose_next_request_is_here() -> None:
    queue = crowded(1)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.recall() == []
    assert queue.start_next() == (101, 103)


def test_who_got_a_slot_meanwhile_or_left_is_not_called() -> None:
    queue = crowded(1, 2, 3)
    queue.on_upload_ended(101, 101)
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_peer_gone(2)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [30]


def test_what_waits_behind_others_or_at_a_node_that_ends_is_not_called() -> None:
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
    """Peers 101 and 102 are served, as many as flow where the uplink isn't known; 1 and 2 were told BUSY."""
    queue: UploadQueue[int] = UploadQueue(
        UploadSettings(slots=4, queue=0, per_peer=4, few_askers_places=0)
    )
    served(queue, 101, 102)
    for peer in (1, 2):
        assert not queue.offer(peer, 10 * peer), "it would wait for long here"
    return queue


def test_where_few_are_served_who_was_served_last_gives_way_once() -> None:
    queue = little_flows_at()
    assert not queue.offer(101, 103), "nor does its next request wait before the others'"
    queue.on_upload_ended(101, 101)
    assert queue.recall() == [10]
    assert not queue.offer(101, 104)
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_upload_ended(102, 102)
    assert queue.recall() == [20]
    assert not queue.offer(102, 105)
    assert queue.offer(102, 106), "nobody else has come meanwhile"
    queue.check()


def test_where_few_are_served_what_is_urgent_gives_way_to_nobody() -> None:
    queue = little_flows_at()
    queue.on_upload_ended(101, 101)
    assert queue.offer(101, 103, Priority.URGENT)
    assert queue.start_next() == (101, 103)
    assert queue.offer(101, 104, Priority.URGENT)
    queue.check()


def test_where_few_are_served_who_is_served_stays_if_nobody_was_turned_away() -> None:
    queue = little_flows_at()
    queue.on_peer_gone(1)
    queue.on_peer_gone(2)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.start_next() == (101, 103)
    queue.on_upload_ended(101, 103)
    assert queue.offer(101, 104)


def test_where_all_slots_are_open_who_is_served_stays_though_others_were_turned_away() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    assert not queue.offer(2, 20)
    assert queue.offer(101, 103)
    queue.on_upload_ended(101, 101)
    assert queue.start_next() == (101, 103)


def rounds(queue: UploadQueue[int], peers: tuple[int, ...], count: int) -> None:
    """Each of these is served so many times more, its next request being here whenever one ends."""
    for turn in range(count):
        for peer in peers:
            number = 1000 * (turn + 1) + peer
            assert queue.offer(peer, number)
            queue.on_upload_ended(peer, queue._active[peer][1])
            assert queue.recall() == []
            assert queue.start_next() == (peer, number)


def test_who_was_turned_away_two_rounds_ago_comes_next_one_for_each_slot_that_is_given_up() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    rounds(queue, (101, 102), 2)
    assert not queue.offer(2, 20), "turned away just now"
    assert not queue.offer(101, 103), "its slot is for the first"
    assert not queue.offer(101, 103), "also if it asks once more"
    assert queue.offer(102, 104), "one slot for one that waits"
    queue.check()
    queue.on_upload_ended(101, 101 + 2000)
    assert queue.recall() == [10]
    assert queue.offer(1, 11)
    assert queue.start_next() == (1, 11)
    queue.on_upload_ended(102, 102 + 2000)
    assert queue.start_next() == (102, 104)
    assert queue.offer(1, 12), "it stays as all do"
    queue.check()


def test_what_is_urgent_gives_way_to_nobody_who_waits_for_long() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    rounds(queue, (101, 102), 2)
    assert queue.offer(101, 103, Priority.URGENT)
    assert not queue.offer(102, 104)

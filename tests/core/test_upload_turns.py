"""The upload queue when all places are taken: who is called, who stays, and who gives way to whom."""

from p2pcache.core.settings import UploadSettings
from p2pcache.core.uploads import Turn, UploadQueue
from tests.core.uploads_kit import opened, served


def crowded(*peers: int) -> UploadQueue[int]:
    """Two slots are taken, and these peers were told BUSY."""
    queue: UploadQueue[int] = UploadQueue(
        UploadSettings(slots=2, queue=0, per_peer=4, few_askers_places=0)
    )
    served(queue, 101, 102)
    for peer in peers:
        assert not queue.offer(peer, 10 * peer)
    assert queue.vacant() == []
    return queue


def test_who_was_told_busy_hears_of_a_free_slot_once_and_in_turn() -> None:
    queue = crowded(1, 2, 1, 3)
    queue.ended(101, 101)
    assert queue.vacant() == [10]
    assert queue.offer(101, 103)
    queue.start()
    queue.ended(101, 103)
    queue.ended(102, 102)
    assert queue.vacant() == [20, 30], "one for each slot"
    assert queue.vacant() == []


def test_nobody_is_called_for_a_slot_whose_next_request_is_here() -> None:
    queue = crowded(1)
    assert queue.offer(101, 103)
    queue.ended(101, 101)
    assert queue.vacant() == []
    assert queue.start() == (101, 103)


def test_who_got_a_slot_meanwhile_or_left_is_not_called() -> None:
    queue = crowded(1, 2, 3)
    queue.ended(101, 101)
    assert queue.offer(1, 11)
    assert queue.start() == (1, 11)
    queue.leave(2)
    queue.ended(102, 102)
    assert queue.vacant() == [30]


def test_what_waits_behind_others_or_at_a_node_that_ends_is_not_called() -> None:
    queue = crowded()
    assert not queue.offer(4, 40, Turn.WARM)
    assert not queue.offer(5, 50, Turn.BACKGROUND)
    queue.ended(101, 101)
    assert queue.vacant() == []
    queue = crowded(1)
    queue.close()
    queue.ended(101, 101)
    assert queue.vacant() == [], "nothing is admitted any more"


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
    queue.ended(101, 101)
    assert queue.vacant() == [10]
    assert not queue.offer(101, 104)
    assert queue.offer(1, 11)
    assert queue.start() == (1, 11)
    queue.ended(102, 102)
    assert queue.vacant() == [20]
    assert not queue.offer(102, 105)
    assert queue.offer(102, 106), "nobody else has come meanwhile"
    queue.check()


def test_where_few_are_served_what_is_urgent_gives_way_to_nobody() -> None:
    queue = little_flows_at()
    queue.ended(101, 101)
    assert queue.offer(101, 103, Turn.URGENT)
    assert queue.start() == (101, 103)
    assert queue.offer(101, 104, Turn.URGENT)
    queue.check()


def test_where_few_are_served_who_is_served_stays_if_nobody_was_turned_away() -> None:
    queue = little_flows_at()
    queue.leave(1)
    queue.leave(2)
    assert queue.offer(101, 103)
    queue.ended(101, 101)
    assert queue.start() == (101, 103)
    queue.ended(101, 103)
    assert queue.offer(101, 104)


def test_where_all_slots_are_open_who_is_served_stays_though_others_were_turned_away() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    assert not queue.offer(2, 20)
    assert queue.offer(101, 103)
    queue.ended(101, 101)
    assert queue.start() == (101, 103)


def rounds(queue: UploadQueue[int], peers: tuple[int, ...], count: int) -> None:
    """Each of these is served so many times more, its next request being here whenever one ends."""
    for turn in range(count):
        for peer in peers:
            number = 1000 * (turn + 1) + peer
            assert queue.offer(peer, number)
            queue.ended(peer, queue._active[peer][1])
            assert queue.vacant() == []
            assert queue.start() == (peer, number)


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
    queue.ended(101, 101 + 2000)
    assert queue.vacant() == [10]
    assert queue.offer(1, 11)
    assert queue.start() == (1, 11)
    queue.ended(102, 102 + 2000)
    assert queue.start() == (102, 104)
    assert queue.offer(1, 12), "it stays as all do"
    queue.check()


def test_what_is_urgent_gives_way_to_nobody_who_waits_for_long() -> None:
    queue = opened(2)
    served(queue, 101, 102)
    assert not queue.offer(1, 10)
    rounds(queue, (101, 102), 2)
    assert queue.offer(101, 103, Turn.URGENT)
    assert not queue.offer(102, 104)


def test_beside_those_that_are_supplied_others_find_only_what_is_left() -> None:
    queue = opened(slots=7)
    for peer in (1, 2, 3):
        assert queue.offer(peer, peer, Turn.URGENT, 4)
    assert queue.offer(8, 8, Turn.USUAL, 4)
    assert not queue.offer(9, 9, Turn.USUAL, 4)
    assert queue.offer(4, 4, Turn.URGENT, 4), "who is supplied is never turned away for that"
    assert not queue.offer(8, 80, Turn.USUAL, 4), "nor may others stay then"
    assert [queue.start() for _ in range(6)] == [(p, p) for p in (1, 2, 3, 4, 8)] + [None]


def test_who_found_no_place_beside_them_is_called_when_there_is_one() -> None:
    queue = opened(slots=7)
    for peer in (1, 2, 3, 4):
        assert queue.offer(peer, peer, Turn.URGENT, 4)
        assert queue.start() == (peer, peer)
    assert not queue.offer(8, 8, Turn.USUAL, 4)
    assert queue.vacant() == [], "three slots are free, but not for it"
    queue.ended(2, 2, 1.0)
    assert queue.vacant() == [8]
    assert queue.offer(8, 8, Turn.USUAL, 4)


def test_slow_ones_find_no_place_beside_one_another_and_those_that_are_supplied() -> None:
    """300 simulated nodes, a tenth slow: three of them on one uplink put those it supplies 20 runs behind."""
    queue = opened(slots=7)
    served(queue, 101)
    queue.ended(101, 101, 1.0)
    served(queue, 1, 2, 3)
    queue.look(10.0)
    queue.look(14.0)  # these three are slow
    for peer in (11, 12):
        assert queue.offer(peer, peer, Turn.SUPPLIED, 4)
        assert queue.start() == (peer, peer)
    queue.ended(1, 1, 4.0)
    assert not queue.offer(1, 5, Turn.USUAL, 4)
    assert queue.offer(21, 21, Turn.USUAL, 4), (
        "who is quick has the place of one that isn't supplied"
    )
    assert queue.start() == (21, 21)
    queue.ended(21, 21, 1.0)
    queue.ended(12, 12, 1.0)
    assert queue.offer(1, 5, Turn.USUAL, 4)
    queue.check()


def test_who_is_supplied_has_a_slot_beside_all_others() -> None:
    """They may be slow, and ask before it is known: a whole tree would wait until they are served."""
    queue: UploadQueue[int] = UploadQueue(UploadSettings(slots=3, few_askers_places=0))
    for peer in (1, 2):
        assert queue.offer(peer, peer, Turn.URGENT, 4)
        assert queue.start() == (peer, peer)
    assert queue.offer(3, 3, Turn.URGENT, 4)
    assert queue.start() is None, "its uplink isn't known yet: two at once"
    for peer in (11, 12, 13, 14):
        assert queue.offer(peer, peer, Turn.SUPPLIED, 4)
    assert [queue.start() for _ in range(4)] == [(p, p) for p in (11, 12, 13)] + [None]
    queue.ended(11, 11)
    assert queue.start() == (14, 14)
    queue.check()


def test_who_takes_far_longer_is_slow_before_its_upload_is_over() -> None:
    queue = opened(slots=7)
    served(queue, 101)
    queue.ended(101, 101, 1.0)  # each of them took a second
    served(queue, *range(1, 8))
    queue.look(10.0)
    queue.look(13.0)
    assert not queue.offer(8, 8)
    assert not queue.far_slower
    queue.look(13.1)
    assert queue.offer(8, 8)
    assert queue.start() == (8, 8), "seven slots are free for those that aren't slow"
    assert queue.far_slower == set(range(1, 8))
    queue.ended(1, 1, 3.2)
    queue.ended(2, 2, 3.0)
    queue.leave(3)
    assert queue.far_slower == {1, 4, 5, 6, 7}
    queue.check()


def test_how_long_is_usual_is_known_after_some_uploads() -> None:
    queue = opened(slots=7)
    served(queue, 1)
    queue.look(0.0)
    queue.look(1e6)
    assert not queue.far_slower


def test_what_is_noise_of_scheduling_is_told_nobody() -> None:
    queue: UploadQueue[int] = UploadQueue(UploadSettings())
    for peer in range(20):
        assert queue.offer(peer, peer)
        assert queue.start() == (peer, peer)
        queue.ended(peer, peer, 0.09 if peer == 19 else 0.001)
    assert not queue.far_slower

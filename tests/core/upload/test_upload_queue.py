"""Admission, order and fairness of uploads, and the invariants under random events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.settings import FULL
from p2pcache.core.upload.upload_queue import UploadQueue
from p2pcache.errors import LocalProtocolError
from tests.core.upload.uploads_kit import opened

SETTINGS = UploadSettings(slots=2)


def queue_of(*requests: tuple[int, int]) -> UploadQueue[int]:
    queue: UploadQueue[int] = UploadQueue(SETTINGS)
    for peer, item in requests:
        assert queue.offer(peer, item)
    return queue


def test_the_requests_of_one_peer_are_served_one_after_the_other() -> None:
    queue = queue_of((1, 10), (1, 11), (1, 12))
    assert queue.start_next() == (1, 10)
    assert queue.start_next() is None
    queue.on_upload_ended(1, 10)
    assert queue.start_next() == (1, 11)
    assert queue.load == 1, "the load counts peers"


def test_slots_go_round_the_peers() -> None:
    queue = opened(3)
    for peer in (1, 2, 3):
        assert queue.offer(peer, 10 * peer)
        assert queue.offer(peer, 10 * peer + 1)
    queue.limit_slots(2)
    assert [queue.start_next(), queue.start_next(), queue.start_next()] == [(1, 10), (2, 20), None]
    queue.on_upload_ended(1, 10)
    assert queue.start_next() == (3, 30)
    queue.on_upload_ended(2, 20)
    assert queue.start_next() == (1, 11)


def test_full_is_busy_but_a_served_peer_may_have_its_next_requests_wait() -> None:
    queue = queue_of((1, 10), (2, 20))
    assert [queue.start_next(), queue.start_next()] == [(1, 10), (2, 20)]
    assert not queue.offer(3, 30)
    assert all(queue.offer(1, item) for item in range(11, 60)), "its link may hold that many"
    queue.on_upload_ended(2, 20)
    assert queue.offer(3, 30), "they take one place"
    assert queue.load == 2
    queue.check()


def test_neighbours_are_told_whether_a_slot_is_free() -> None:
    queue = queue_of((1, 10))
    assert (queue.load, queue.told_load) == (1, 1)
    assert queue.offer(2, 20)
    assert (queue.load, queue.told_load) == (2, FULL), "only two slots are open"
    many = opened(2 * FULL)
    for peer in range(2 * FULL):
        assert many.told_load == min(peer, FULL - 1)
        assert many.offer(peer, peer)
    assert many.told_load == 2 * FULL


def test_a_warm_request_keeps_no_place_from_a_pull() -> None:
    queue = queue_of()
    assert queue.offer(1, 10, Priority.WARM)
    assert queue.offer(2, 20, Priority.WARM)
    assert [queue.start_next(), queue.start_next()] == [(1, 10), (2, 20)]
    assert not queue.offer(3, 30, Priority.WARM)
    assert not queue.offer(1, 11, Priority.WARM)
    assert all(queue.offer(peer, peer) for peer in (4, 5)), "warm requests take no place from pulls"
    queue.on_upload_ended(1, 10)
    assert queue.start_next() == (4, 4)
    queue.check()


def test_an_urgent_request_is_served_first_and_finds_a_place_when_all_are_taken() -> None:
    queue = queue_of((1, 10), (2, 20))
    assert not queue.offer(6, 60)
    assert queue.offer(6, 60, Priority.URGENT)
    assert queue.offer(7, 70, Priority.URGENT)
    assert [queue.start_next(), queue.start_next()] == [(6, 60), (7, 70)]
    queue.on_upload_ended(6, 60)
    assert queue.start_next() == (1, 10)
    queue.check()


def test_places_for_urgent_requests_end_too() -> None:
    queue = queue_of((1, 10), (2, 20))
    admitted = sum(queue.offer(peer, peer, Priority.URGENT) for peer in range(100, 200))
    assert admitted == SETTINGS.slots, "they see no places but their own"


def test_background_is_served_after_everybody() -> None:
    queue = opened(3)
    assert queue.offer(1, 10, Priority.BACKGROUND)
    assert queue.offer(2, 20, Priority.BACKGROUND)
    assert queue.offer(2, 21)
    assert queue.offer(3, 30)
    assert [queue.start_next(), queue.start_next(), queue.start_next()] == [
        (2, 21),
        (3, 30),
        (1, 10),
    ]
    queue.on_upload_ended(2, 21)
    assert queue.start_next() == (2, 20)
    queue.check()


def test_a_warm_request_is_served_after_pulls_and_before_the_background() -> None:
    queue = opened(4)
    for peer, priority in enumerate(
        (Priority.BACKGROUND, Priority.WARM, Priority.USUAL, Priority.URGENT)
    ):
        assert queue.offer(peer, peer, priority)
    assert queue.offer(9, 9, Priority.WARM), "it comes before the background"
    assert [queue.start_next(), queue.start_next()] == [(3, 3), (2, 2)]
    assert {queue.start_next(), queue.start_next()} == {(1, 1), (9, 9)}
    queue.check()


def test_active_uploads_go_on_when_slots_become_fewer() -> None:
    queue = opened(4)
    for peer in range(4):
        assert queue.offer(peer, peer)
        assert queue.start_next() is not None
    queue.limit_slots(1)
    assert not queue.offer(9, 9)
    for peer in range(3):
        queue.on_upload_ended(peer, peer)
        assert not queue.offer(9, 9)
    queue.on_upload_ended(3, 3)
    assert queue.offer(9, 9)
    assert queue.start_next() == (9, 9)
    queue.limit_slots(100)
    queue.check()


def test_only_a_waiting_request_can_be_cancelled() -> None:
    queue = queue_of((1, 10), (1, 11))
    assert queue.start_next() == (1, 10)
    assert not queue.cancel_waiting(1, 10)
    assert queue.cancel_waiting(1, 11)
    assert not queue.cancel_waiting(1, 11)
    queue.on_upload_ended(1, 10)
    assert queue.load == 0
    assert queue.start_next() is None


def test_the_waiting_requests_of_a_peer_that_is_gone_are_returned() -> None:
    queue = queue_of((1, 10), (1, 11), (2, 20))
    assert queue.start_next() == (1, 10)
    assert queue.on_peer_gone(1) == [11]
    assert queue.on_peer_gone(1) == []
    queue.on_upload_ended(1, 10)
    assert queue.start_next() == (2, 20)


def test_closed_admits_nothing_but_serves_the_rest() -> None:
    queue = queue_of((1, 10))
    queue.close()
    assert not queue.offer(2, 20)
    assert queue.start_next() == (1, 10)


def test_the_end_of_an_unknown_upload_is_our_bug() -> None:
    queue = queue_of((1, 10))
    with pytest.raises(LocalProtocolError):
        queue.on_upload_ended(1, 10)


class Machine(RuleBasedStateMachine):
    """Random offers, starts, ends, cancels and departures; each request ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: UploadQueue[int] = UploadQueue(SETTINGS)
        self.waiting: set[tuple[int, int]] = set()
        self.active: set[tuple[int, int]] = set()
        self.count = 0
        self.now = 0.0

    @rule(peer=st.integers(0, 4), priority=st.sampled_from(Priority))
    def offer(self, peer: int, priority: Priority) -> None:
        self.count += 1
        if self.queue.offer(peer, self.count, priority):
            self.waiting.add((peer, self.count))
        else:
            assert self.waiting or self.active  # an idle node never says BUSY

    @rule()
    def start(self) -> None:
        begun = self.queue.start_next()
        if begun is None:
            idle = {p for p, _ in self.waiting} - {p for p, _ in self.active}
            assert not idle or len(self.active) >= SETTINGS.slots  # work-conserving
        else:
            self.waiting.remove(begun)
            self.active.add(begun)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.active:
            one = data.draw(st.sampled_from(sorted(self.active)))
            self.active.remove(one)
            self.queue.on_upload_ended(*one, data.draw(st.sampled_from([None, 0.1, 10.0])))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.waiting:
            one = data.draw(st.sampled_from(sorted(self.waiting)))
            self.waiting.remove(one)
            assert self.queue.cancel_waiting(*one)

    @rule(seconds=st.floats(0.0, 10.0))
    def look(self, seconds: float) -> None:
        self.now += seconds
        self.queue.mark_slow_receivers(self.now)

    @rule(peer=st.integers(0, 4))
    def leave(self, peer: int) -> None:
        gone = {(peer, item) for item in self.queue.on_peer_gone(peer)}
        assert gone == {one for one in self.waiting if one[0] == peer}
        self.waiting -= gone

    @invariant()
    def holds(self) -> None:
        self.queue.check()
        assert self.queue.load == len({peer for peer, _ in self.waiting | self.active})


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)

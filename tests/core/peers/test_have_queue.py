"""What neighbours are told at once, and what waits."""

import math

from p2pcache.core.peers.have_queue import HaveQueue
from p2pcache.core.peers.settings import LAST_RUNS
from p2pcache.core.swarm.commands import Announce
from p2pcache.core.upload.settings import FULL

MANY = 100  # runs of the model
NOBODY_KNOWS = [(1, 0), (2, 0)]


def common(runs: int) -> Announce:
    return Announce(runs, common=runs, wait_s=0.5)


def test_a_rare_run_goes_at_once_and_takes_along_what_waits() -> None:
    queue = HaveQueue(MANY)
    assert queue.tell_or_keep(common(0b1), NOBODY_KNOWS, 0, 1.0) == []
    assert queue.due_at == 1.5
    assert queue.tell_or_keep(Announce(0b10, wait_s=0.5), [(1, 0), (2, 0b10)], 0, 1.2) == [
        (1, 0b11)
    ]
    assert queue.due_at == 1.5  # the other one has the rare run, and waits for the common one
    assert queue.due([(1, 0b11), (2, 0b10)], 0) == [(2, 0b1)]
    assert queue.due_at == math.inf


def test_without_a_wait_everything_goes_at_once() -> None:
    queue = HaveQueue(MANY)
    assert queue.tell_or_keep(Announce(0b1), NOBODY_KNOWS, 0, 1.0) == [(1, 0b1), (2, 0b1)]
    assert queue.due_at == math.inf


def test_nobody_is_told_of_a_run_that_came_to_it_meanwhile() -> None:
    queue = HaveQueue(MANY)
    queue.tell_or_keep(common(0b1), NOBODY_KNOWS, 0, 1.0)
    assert queue.due([(1, 0b1), (2, 0b1)], 0) == []


def test_a_request_takes_along_what_waits() -> None:
    queue = HaveQueue(MANY)
    queue.tell_or_keep(common(0b1), [(1, 0)], 0, 1.0)
    assert queue.take_waiting(1, 0b10) == 0b1
    assert queue.take_waiting(1, 0b10) == 0
    assert queue.due_at == math.inf


def test_a_node_that_said_it_is_full_tells_all_as_soon_as_it_is_not() -> None:
    queue = HaveQueue(MANY)
    assert queue.tell_or_keep(Announce(0b1), [(1, 0)], FULL, 1.0) == [(1, 0b1)]
    assert queue.tell_or_keep(Announce(0b1), [(2, 0)], 0, 1.0) == [(2, 0b1)]
    queue.tell_or_keep(common(0b10), [(1, 0b1), (2, 0b1)], FULL, 1.1)
    before = queue.waits_for_room
    assert before
    assert queue.on_room([(1, 0b1), (2, 0b1)], FULL) == []
    assert queue.on_room([(1, 0b1), (2, 0b1)], 3) == [(1, 0b10)]
    assert not queue.waits_for_room
    assert queue.due([(1, 0b11), (2, 0b1)], 3) == [(2, 0b10)]


def test_a_neighbour_that_is_gone_is_forgotten() -> None:
    queue = HaveQueue(MANY)
    queue.tell_or_keep(common(0b1), [(1, 0)], 0, 1.0)
    queue.tell_or_keep(common(0b10), [(2, 0)], 0, 1.0)
    assert queue.due([(1, 0), (2, 0)], 0) == [(2, 0b10)]


def test_a_neighbour_that_lacks_few_runs_is_told_at_once() -> None:
    queue = HaveQueue(MANY)
    nearly_all = (1 << MANY - LAST_RUNS) - 1
    here = common(1 << MANY - 1)
    assert queue.tell_or_keep(here, [(1, nearly_all), (2, nearly_all >> 1)], 0, 1.0) == [
        (1, here.runs)
    ]
    assert queue.due_at == 1.5

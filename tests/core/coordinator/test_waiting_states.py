"""States from long lists: members take turns, and a later state takes the place of an earlier one."""

from collections.abc import Iterator

from p2pcache.core.coordinator.waiting_states import WaitingState, WaitingStates
from p2pcache.core.protocol.messages import SwarmState


def told(digest: str, credit: int = 0) -> SwarmState:
    return SwarmState(digest, 8, credit=credit)


def taken(waiting: WaitingStates, count: int) -> list[tuple[int, str]]:
    return [(node, one.said.digest) for node, one in in_turn(waiting, count)]


def in_turn(waiting: WaitingStates, count: int) -> Iterator[tuple[int, WaitingState]]:
    for _ in range(count):
        if waiting.lists:
            one = waiting.pick(node := waiting.next_member())
            assert one is not None
            assert all(waiting.lists.values())
            yield node, one


def test_members_take_turns_and_each_list_keeps_its_order() -> None:
    waiting = WaitingStates()
    waiting.add(1, [told("a"), told("b"), told("c")], announced=True)
    waiting.add(2, [told("x"), told("y")], announced=True)
    assert taken(waiting, 3) == [(1, "a"), (2, "x"), (1, "b")]
    assert taken(waiting, 10) == [(2, "y"), (1, "c")]
    assert taken(waiting, 10) == []


def test_a_later_state_takes_the_place_of_an_earlier_one() -> None:
    waiting = WaitingStates()
    waiting.add(1, [told("a", credit=1), told("b")], announced=True)
    waiting.add(1, [told("a", credit=5)], announced=False)
    first, second = (one for _, one in in_turn(waiting, 10))
    assert (first.said.digest, second.said) == ("b", told("a", credit=5))
    assert second.announced, "what it replaces was announced"
    waiting.add(1, [told("c")], announced=False)
    ((_, heartbeat),) = in_turn(waiting, 10)
    assert not heartbeat.announced


def test_a_state_out_of_turn_waits_no_longer() -> None:
    waiting = WaitingStates()
    waiting.add(1, [told("a"), told("b")], announced=True)
    one = waiting.pick(1, "b")
    assert one is not None
    assert one.said.digest == "b"
    assert waiting.pick(1, "b") is None
    assert waiting.pick(2, "a") is None
    assert waiting.pick(1, "a") is not None
    assert taken(waiting, 10) == []


def test_a_member_that_is_gone_has_nothing_waiting() -> None:
    waiting = WaitingStates()
    waiting.add(1, [told("a")], announced=True)
    waiting.add(2, [], announced=True)
    waiting.forget(1)
    waiting.forget(3)
    assert taken(waiting, 10) == []

"""Who is named slow by a supplier is asked, and is slow if it has far less than those that are supplied beside it."""

import pytest

from p2pcache.core import chunkset
from p2pcache.core.suspects import Suspects

NODE, SUPPLIER = 9, 1
BESIDE = (2, 3, 4)


def named(*, done: int = 30, witnesses: tuple[int, ...] = (SUPPLIER, *BESIDE)) -> Suspects:
    suspects = Suspects()
    suspects.named(NODE, witnesses, done)
    suspects.check()
    return suspects


def having(mine: int, theirs: int) -> dict[int, int]:
    return {NODE: chunkset.full(mine)} | dict.fromkeys((SUPPLIER, *BESIDE), chunkset.full(theirs))


def test_those_beside_it_are_asked_as_well() -> None:
    suspects = named()
    asked = suspects.to_ask(30)
    assert asked == [SUPPLIER, *BESIDE, NODE], "and before it: it is judged when it answers"
    assert suspects.to_ask(31) == [], "it was asked"


def test_a_supplier_alone_may_lie() -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, having(10, 11) | {SUPPLIER: chunkset.full(30)}, 30)
    assert not suspects.slow
    suspects = named(witnesses=(SUPPLIER,))
    suspects.to_ask(30)
    suspects.heard(NODE, having(0, 30), 30)
    assert not suspects.slow, "it says what nobody else does"


def test_one_beside_it_may_be_slow_itself() -> None:
    suspects = named()
    suspects.to_ask(30)
    assert suspects.heard(NODE, having(0, 10) | {BESIDE[0]: 0}, 30)
    assert NODE in suspects.slow


def test_several_suppliers_speak_of_more_witnesses() -> None:
    suspects = named(witnesses=(SUPPLIER,))
    suspects.named(NODE, (BESIDE[0],), 30)
    suspects.named(NODE, (BESIDE[1],), 30)
    suspects.to_ask(30)
    suspects.heard(NODE, having(0, 30), 30)
    assert NODE in suspects.slow


def test_what_was_said_long_ago_counts_no_more() -> None:
    suspects = named()
    suspects.named(NODE, (BESIDE[0],), 200)
    assert suspects.to_ask(200) == [BESIDE[0], NODE]
    suspects.heard(NODE, having(0, 30), 200)
    assert not suspects.slow


@pytest.mark.parametrize(
    ("mine", "theirs", "slow"),
    [
        (0, 0, False),
        (0, 2, False),
        (1, 10, True),
        (6, 10, False),
        (20, 60, True),
        # Real nodes have 52 to 61 while 76 were read.
        (52, 61, False),
        (500, 520, True),
    ],
)
def test_who_is_named_is_slow_if_it_has_far_less(mine: int, theirs: int, slow: bool) -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, having(mine, theirs), 31)
    assert (NODE in suspects.slow) is slow
    suspects.check()


def test_who_came_late_is_not_slow_for_what_was_read_before() -> None:
    """300 simulated nodes that start within half of a storm: seven of them were called slow while they caught up."""
    suspects = named(done=60)
    suspects.came(NODE, 40)
    suspects.to_ask(60)
    suspects.heard(NODE, having(10, 55), 60)
    assert not suspects.slow
    suspects.to_ask(100)
    suspects.heard(NODE, having(14, 95), 100)
    assert NODE in suspects.slow, "and it takes nothing of what is new"
    suspects.left(NODE)
    suspects.named(NODE, (SUPPLIER, *BESIDE), 100)
    suspects.to_ask(100)
    suspects.heard(NODE, having(14, 95), 100)
    assert NODE in suspects.slow, "it came again, and may have been there all the time"


def test_who_is_not_slow_but_named_is_asked_again() -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, having(20, 22), 30)
    assert suspects.to_ask(32) == []
    assert NODE in suspects.to_ask(34)
    suspects.heard(NODE, having(20, 40), 34)
    assert NODE in suspects.slow


def test_what_was_said_long_ago_is_not_asked_about_for_ever() -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, having(20, 22), 30)
    suspects.to_ask(200)
    suspects.heard(NODE, having(20, 200), 200)
    assert not suspects.slow
    assert suspects.to_ask(1000) == []


def test_a_witness_that_is_gone_says_nothing() -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, {NODE: 0, SUPPLIER: chunkset.full(40), BESIDE[0]: chunkset.full(40)}, 30)
    assert not suspects.slow


def test_who_kept_up_is_slow_no_more() -> None:
    suspects = named()
    suspects.to_ask(30)
    suspects.heard(NODE, having(0, 30), 30)
    suspects.kept_up(NODE, 60, 48.0)
    assert NODE in suspects.slow, "so soon anybody has what was read"
    suspects.kept_up(NODE, 90, 48.0)
    assert NODE not in suspects.slow
    suspects.named(NODE, (SUPPLIER,), 90)
    suspects.to_ask(90)
    suspects.heard(NODE, having(0, 90), 90)
    assert not suspects.slow, "what was said of it before is forgotten"
    suspects.check()

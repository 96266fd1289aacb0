"""Who is named slow by two suppliers is asked, and is slow if it has far less than they have."""

import pytest

from p2pcache.core import chunkset
from p2pcache.core.suspects import Suspects

NODE, ONE, OTHER = 9, 1, 2


def named_by(*suppliers: int, done: int = 30) -> Suspects:
    suspects = Suspects()
    for supplier in suppliers:
        suspects.named(NODE, supplier, done)
    suspects.check()
    return suspects


def having(mine: int, theirs: int) -> dict[int, int]:
    return {NODE: chunkset.full(mine), ONE: chunkset.full(theirs), OTHER: chunkset.full(theirs)}


def test_one_alone_may_lie() -> None:
    suspects = named_by(ONE, ONE)
    assert suspects.to_ask(30) == []
    suspects.heard(NODE, having(0, 30), 30)
    assert not suspects.slow


def test_two_of_whom_one_spoke_long_ago_are_one() -> None:
    suspects = named_by(ONE)
    suspects.named(NODE, OTHER, 200)
    assert suspects.to_ask(200) == []


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
    suspects = named_by(ONE, OTHER)
    assert suspects.to_ask(30) == [NODE]
    assert suspects.to_ask(31) == [], "it was asked"
    suspects.heard(NODE, having(mine, theirs), 31)
    assert (NODE in suspects.slow) is slow
    suspects.check()


def test_who_is_not_slow_but_named_is_asked_again() -> None:
    suspects = named_by(ONE, OTHER)
    suspects.to_ask(30)
    suspects.heard(NODE, having(20, 22), 30)
    assert suspects.to_ask(32) == []
    assert suspects.to_ask(34) == [NODE]
    suspects.heard(NODE, having(20, 40), 34)
    assert NODE in suspects.slow


def test_what_was_said_long_ago_is_not_asked_about_for_ever() -> None:
    suspects = named_by(ONE, OTHER)
    suspects.to_ask(30)
    suspects.heard(NODE, having(20, 22), 30)
    suspects.to_ask(200)
    suspects.heard(NODE, having(20, 200), 200)
    assert not suspects.slow
    assert suspects.to_ask(1000) == []


def test_an_accuser_that_is_gone_says_nothing() -> None:
    suspects = named_by(ONE, OTHER)
    suspects.heard(NODE, {NODE: 0, ONE: chunkset.full(40)}, 30)
    assert not suspects.slow


def test_who_kept_up_is_slow_no_more() -> None:
    suspects = named_by(ONE, OTHER)
    suspects.heard(NODE, having(0, 30), 30)
    suspects.kept_up(NODE, 60, 48.0)
    assert NODE in suspects.slow, "so soon anybody has what was read"
    suspects.kept_up(NODE, 90, 48.0)
    assert NODE not in suspects.slow
    suspects.named(NODE, ONE, 90)
    assert suspects.to_ask(90) == [], "what was said of it before is forgotten"
    suspects.check()

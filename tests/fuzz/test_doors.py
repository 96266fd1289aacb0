"""The short form of `make fuzz`: some inputs for each door, the same ones each time."""

import pytest
from hypothesis import strategies as st

from tests.fuzz.daemons import DAEMONS
from tests.fuzz.doors import PURE, Door, pure
from tests.fuzz.run import knock


@pytest.mark.parametrize("door", PURE, ids=lambda door: door.name)
def test_parsers_and_deciders(door: Door) -> None:
    assert knock(door, 100, dice=1) > 20


@pytest.mark.parametrize("door", DAEMONS, ids=lambda door: door.name)
def test_daemons(door: Door) -> None:
    assert knock(door, 15, dice=1) > 5


def test_a_door_that_fails_is_found() -> None:
    def check(given: int) -> None:
        assert given < 1000

    with pytest.raises(AssertionError):
        knock(pure("broken", st.integers(0, 1 << 20), check), 200, dice=1)

"""Time limits of callers."""

from typing import Any

import pytest

from p2pcache.errors import TimedOut, UsageError
from p2pcache.loader.source.deadline import Deadline


def test_a_deadline_ends_a_wait_and_then_is_an_error() -> None:
    deadline = Deadline(60.0, "m")
    deadline.check()
    assert deadline.slice_s(1.0) == 1.0
    assert 59.0 < deadline.slice_s(100.0) <= 60.0
    over = Deadline(-1.0, "team/m:v1")
    assert over.slice_s(1.0) == 0.0
    with pytest.raises(TimedOut, match=r"team/m:v1: .* within -1 s"):
        over.check()


def test_without_a_limit_a_wait_is_as_long_as_it_wishes() -> None:
    deadline = Deadline(None, "m")
    deadline.check()
    assert deadline.slice_s(1e9) == 1e9


@pytest.mark.parametrize("timeout_s", ["5", float("nan"), []])
def test_a_limit_must_be_a_number(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match="expected seconds"):
        Deadline(timeout_s, "m")

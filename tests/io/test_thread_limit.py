"""What Python says when the system allows no more threads."""

import pytest

from p2pcache.io.thread_limit import no_more_threads


def test_the_limits_are_named() -> None:
    found = no_more_threads(RuntimeError("can't start new thread"))
    assert found is not None
    for name in ("pids", "TasksMax", "ulimit -u"):
        assert name in str(found)


@pytest.mark.parametrize(
    "error", [RuntimeError("loop is closed"), OSError("can't start new thread")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert no_more_threads(error) is None

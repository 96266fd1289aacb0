"""Work on a thread, watched from another one."""

import threading
import time
from collections.abc import Callable

import pytest

from p2pcache.cli.support import background
from p2pcache.cli.support.background import Watched
from p2pcache.io.deadline_thread import Stopped

Report = Callable[[int, int], None]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PROGRESS_EVERY_S", 0.01)


def test_progress_and_result_come_from_the_work() -> None:
    reported, seen = threading.Event(), threading.Event()

    def work(report: Report) -> str:
        report(3, 10)
        reported.set()
        assert seen.wait(30)
        return "done"

    watched = Watched(work)
    for state in watched.progress():
        if reported.is_set() and state == (3, 10):
            seen.set()
    assert seen.is_set()
    assert watched.result() == "done"


def test_an_error_of_the_work_is_raised_by_the_result() -> None:
    def work(_: Report) -> None:
        raise ValueError("broken")

    watched = Watched(work)
    list(watched.progress())
    with pytest.raises(ValueError, match="broken"):
        watched.result()


def test_leaving_the_loop_stops_the_work_at_its_next_report() -> None:
    left = threading.Event()

    def work(report: Report) -> None:
        assert left.wait(30)
        report(1, 2)

    watched = Watched(work)
    progress = watched.progress()
    next(progress)
    progress.close()  # type: ignore[attr-defined]
    left.set()
    with pytest.raises(Stopped):
        watched.result()


def test_long_work_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "WAITING_S", 0.05)
    with background.patience_said("examining", lambda: "a reason", quiet=False):
        time.sleep(0.3)
    assert "examining" in (said := capsys.readouterr().err)
    assert ": a reason" in said
    with background.patience_said("examining", str, quiet=True):
        time.sleep(0.2)
    assert not capsys.readouterr().err

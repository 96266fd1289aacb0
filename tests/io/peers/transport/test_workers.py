"""Worker threads and receive buffers of the data plane."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from p2pcache.core.peers.settings import PULSE_MAX_S
from p2pcache.io.peers.transport.workers import Inbox, SlicePool, Workers


class Job:
    def __init__(self) -> None:
        self.done = threading.Event()

    def __call__(self) -> None:
        self.done.set()


def test_an_idle_worker_holds_nothing_of_its_last_job() -> None:
    """It would keep the last file of a pull open, and so its space after `rm`."""
    workers = Workers(1, "test")
    job = Job()
    gone = threading.Event()
    weakref.finalize(job, gone.set)
    workers.submit(job)
    assert job.done.wait(30)
    del job
    gc.collect()
    assert gone.wait(30)
    workers.stop()


def test_a_slice_comes_back_after_its_last_holder() -> None:
    pool = SlicePool(2)
    first = pool.take()
    first.hold()
    first.release()
    assert not first.shared
    assert pool.take() is not first
    first.release()
    assert pool.take() is first
    assert pool.made == 2


class Rounds:
    """A loop that counts how often it is woken, and runs what it was given when asked to."""

    def __init__(self) -> None:
        self.woken = 0
        self.next: list[Callable[[], None]] = []
        self.now = 100.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.woken += 1
        self.next.append(call)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> SimpleNamespace:
        self.timer = (when, call)
        return SimpleNamespace(cancel=lambda: None)

    def sleeps(self) -> bool:
        """Whether no pulse will come."""
        return self.timer is None

    def pulse(self) -> None:
        assert self.timer is not None
        (self.now, call), self.timer = self.timer, None
        call()

    def go(self) -> None:
        calls, self.next = self.next, []
        for call in calls:
            call()


def test_calls_that_calls_post_come_in_the_next_round_without_a_wake_up() -> None:
    loop = Rounds()
    inbox = Inbox(cast("asyncio.AbstractEventLoop", loop))
    made: list[str] = []

    def first() -> None:
        made.append("first")
        inbox.post(made.append, "second")

    inbox.post(first)
    inbox.post(made.append, "beside it")
    loop.go()
    assert made == ["first", "beside it"]
    loop.go()
    assert made == ["first", "beside it", "second"]
    assert loop.woken == 1
    inbox.post(made.append, "later")
    assert loop.woken == 2
    loop.go()
    assert made[-1] == "later"
    assert not loop.next


class Come:
    """Frames that have come, and whether they wake the loop."""

    def __init__(self, inbox: Inbox) -> None:
        self.waiting = 0
        self.handled = 0
        self.wakes = [True]
        inbox.frames = self

    def receive_all(self) -> bool:
        came, self.waiting = self.waiting, 0
        self.handled += came
        return came > 0

    def wake_loop(self, *, on: bool) -> None:
        self.wakes.append(on)


def in_pulses() -> tuple[Rounds, Inbox, Come]:
    loop = Rounds()
    inbox = Inbox(cast("asyncio.AbstractEventLoop", loop))
    inbox.pulse_s = 0.02
    return loop, inbox, Come(inbox)


def test_between_pulses_nothing_wakes_the_loop() -> None:
    loop, inbox, frames = in_pulses()
    made: list[int] = []
    inbox.post(made.append, 1)
    assert loop.woken == 1
    loop.go()
    assert made == [1]
    assert frames.wakes[-1:] == [False]
    inbox.post(made.append, 2)
    frames.waiting = 3
    loop.go()
    assert made == [1]
    loop.pulse()
    assert (made, frames.handled) == ([1, 2], 3)
    assert loop.now == pytest.approx(100.02)
    frames.waiting = 1
    loop.pulse()  # frames alone, too
    assert frames.handled == 4
    loop.pulse()  # nothing came
    assert frames.wakes[-1:] == [True]
    assert loop.sleeps()
    assert loop.woken == 1
    inbox.post(made.append, 3)
    assert loop.woken == 2


def test_what_a_call_posts_does_not_wait_for_the_next_pulse() -> None:
    loop = Rounds()
    inbox = Inbox(cast("asyncio.AbstractEventLoop", loop))
    made: list[int] = []
    inbox.pulse_s = 0.02
    inbox.post(inbox.post, made.append, 1)
    loop.go()
    assert loop.sleeps()
    loop.go()
    assert made == [1]
    assert not loop.sleeps()


def test_timers_go_by_the_pulses() -> None:
    inbox = Inbox(cast("asyncio.AbstractEventLoop", Rounds()))
    assert inbox.pulse_after(7.0123) == 7.0123
    inbox.pulse_s = 0.02
    assert inbox.pulse_after(7.0123) == pytest.approx(7.02)
    assert inbox.pulse_after(inbox.pulse_after(7.0123)) == pytest.approx(7.02)


def test_an_error_in_a_frame_doesnt_end_the_wake_ups() -> None:
    """The reader is off between pulses, so a node would hear nothing more."""
    loop, inbox, frames = in_pulses()
    made: list[int] = []
    inbox.post(made.append, 1)
    loop.go()
    frames.receive_all = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="epoll"):
        loop.pulse()
    inbox.post(made.append, 2)
    with pytest.raises(OSError, match="epoll"):
        loop.pulse()
    assert made == [1, 2]


def broken() -> bool:
    raise OSError("epoll")


def test_how_far_apart_pulses_are_is_asked_now_and_then() -> None:
    loop = Rounds()
    inbox = Inbox(cast("asyncio.AbstractEventLoop", loop))
    asked: list[float] = []

    def pulse_s() -> float:
        asked.append(loop.now)
        return 0.0 if len(asked) < 5 else 0.02

    inbox.wanted_pulse_s = pulse_s
    for _ in range(10):
        inbox.post(list[int]().append, 1)
        loop.go()
        loop.now += 0.51 * PULSE_MAX_S
    assert len(asked) == 5
    assert inbox.pulse_s == 0.02
    inbox.stop()
    assert inbox.pulse_s == 0.0


def test_threads_are_started_as_jobs_come_and_no_more_than_asked_for() -> None:
    name, held = "test-growing", threading.Semaphore(0)
    workers = Workers(3, name)

    def alive() -> int:
        return sum(one.name.startswith(name) for one in threading.enumerate())

    def hold() -> None:
        held.acquire(timeout=10)

    assert alive() == 1
    for _ in range(5):
        workers.submit(hold)
    assert alive() == 3
    held.release(5)
    workers.stop()
    assert alive() == 0
    workers.submit(lambda: None)
    assert alive() == 0


def test_a_system_that_allows_no_more_threads_leaves_the_jobs_to_those_that_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(2, "test-short")
    done = threading.Event()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        workers.submit(done.set)
    assert done.wait(10)
    workers.stop()

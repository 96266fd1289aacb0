"""Worker threads and receive buffers of the data plane."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import cast

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

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.woken += 1
        self.next.append(call)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.next.append(call)

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

"""Requests and reads between one scheduler and the next."""

import asyncio
import logging
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.agent.downloads.work_in_flight import WorkInFlight
from p2pcache.agent.origin_reads import LeasedRun
from p2pcache.core.protocol.messages import LeaseReport
from p2pcache.core.swarm.commands import Request
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority

DIGEST = "d" * 64


class World:
    """The connections and the origin of an agent."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []  # wire number, peer, run
        self.cancelled: list[int] = []
        self.read_runs: list[list[LeasedRun]] = []
        self.ends: list[tuple[int | None, int, Outcome]] = []
        self.sent: list[LeaseReport] = []  # to the tracker
        self.bug: Exception | None = None
        self.tasks: list[asyncio.Task[None]] = []
        store: Any = SimpleNamespace(layout=None, digest=DIGEST)
        context: Any = SimpleNamespace(
            net=SimpleNamespace(request=self._request, cancel=self._cancel), origin=self, tasks=self,
            link=SimpleNamespace(epoch=7, send=self.sent.append),
        )  # fmt: skip
        self.work = WorkInFlight(
            context, store, lambda number, run, outcome, _: self.ends.append((number, run, outcome))
        )

    def _request(self, digest: str, wire: int, peer: int, run: int, priority: Priority) -> None:
        assert (digest, priority) == (DIGEST, Priority.URGENT)
        self.asked.append((wire, peer, run))

    def _cancel(self, digest: str, wire: int) -> None:
        self.cancelled.append(wire)

    async def read(self, _layout: object, _store: object, runs: list[LeasedRun]) -> None:
        self.read_runs.append(runs)
        if self.bug is not None:
            raise self.bug

    def spawn_contained(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        assert name.startswith("fetch-")
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def ask(self, number: int, peer: int, run: int) -> int:
        """The wire number of a request."""
        self.work.begin_request(Request(number, peer, run, Priority.URGENT))
        return self.asked[-1][0]

    def is_asking(self) -> bool:
        return self.work.asking

    def is_reading(self) -> bool:
        return self.work.reading

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


async def test_a_request_ends_once_and_names_its_peer() -> None:
    world = World()
    wire = world.ask(1, peer=7, run=3)
    assert world.asked == [(wire, 7, 3)]
    assert world.is_asking()
    world.work.cancel_request(1)
    assert world.cancelled == [wire]
    assert world.is_asking(), "a cancelled request still ends"
    assert world.work.end_request(wire) == (1, 7)
    assert not world.is_asking()
    assert world.work.end_request(wire) == (None, 0)
    world.work.cancel_request(1)
    assert world.cancelled == [wire]


async def test_a_late_end_hits_no_request_of_the_next_scheduler() -> None:
    """Both schedulers count from 1."""
    world = World()
    old = world.ask(1, peer=7, run=3)
    world.work.cancel_all(0)
    assert world.cancelled == [old]
    assert not world.is_asking()
    new = world.ask(1, peer=8, run=4)
    assert new != old
    assert world.work.end_request(old) == (None, 0)
    assert world.work.end_request(new) == (1, 8)


async def test_a_late_read_hits_no_read_of_the_next_scheduler() -> None:
    world = World()
    world.work.begin_read(1, 3)
    world.work.cancel_all(0)
    assert not world.is_reading()
    world.work.begin_read(1, 4)
    await world.settle()
    (old,), (new,) = world.read_runs
    assert old.cancelled.is_set()
    assert not new.cancelled.is_set()
    old.end(Outcome.DONE)
    assert world.ends == [(None, 3, Outcome.DONE)], "its bytes count, and no scheduler hears of it"
    assert world.is_reading()
    new.end(Outcome.DONE)
    assert world.ends[1:] == [(1, 4, Outcome.DONE)]
    assert not world.is_reading()


async def test_joined_reads_go_out_in_one_request_and_end_one_by_one() -> None:
    world = World()
    world.work.begin_read(1, 10)
    world.work.begin_read(2, 11, joined=True)
    world.work.begin_read(3, 20)
    world.work.begin_read(4, 21, joined=True)
    await world.settle()
    assert [[one.run for one in runs] for runs in world.read_runs] == [[10, 11], [20, 21]]
    world.work.cancel_read(2)
    assert [one.cancelled.is_set() for one in world.read_runs[0]] == [False, True]
    for one in (*world.read_runs[1], *world.read_runs[0]):
        one.end(Outcome.DONE)
    assert [number for number, _, _ in world.ends] == [3, 4, 1, 2]
    world.work.cancel_read(2)  # its end is known: nothing to cancel


async def test_a_bug_in_the_origin_leaves_no_read_in_flight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.bug = ZeroDivisionError("a bug")
    world.work.begin_read(1, 10)
    world.work.begin_read(2, 11, joined=True)
    with caplog.at_level(logging.ERROR):
        await world.settle()
    assert world.ends == [(1, 10, Outcome.FAILED), (2, 11, Outcome.FAILED)]
    assert not world.is_reading()
    assert f"reading runs 10, 11 of blake3:{DIGEST}" in caplog.text


async def test_leases_of_a_scheduler_that_is_gone_are_given_back() -> None:
    world = World()
    world.work.cancel_all(0)
    assert world.sent == []
    world.work.cancel_all(0b1010)
    assert world.sent == [LeaseReport(DIGEST, 7, returned=(1, 3))]


async def test_reads_by_leases_may_outlive_their_scheduler_and_end_their_leases() -> None:
    world = World()
    for fetch, run in enumerate((1, 2, 3)):
        world.work.begin_read(fetch, run)
    await world.settle()
    for (read,) in world.read_runs:
        read.begun = True
    world.work.cancel_all(
        0b11010, finish=True
    )  # run 2 is read without a lease, run 4 isn't read yet
    one, two, three = (runs[0] for runs in world.read_runs)
    assert [read.cancelled.is_set() for read in (one, two, three)] == [False, True, False]
    assert world.sent == [LeaseReport(DIGEST, 7, returned=(4,))]
    one.end(Outcome.DONE, 0.5)
    two.end(Outcome.CANCELLED)
    three.end(Outcome.UNAVAILABLE)
    assert world.sent[1:] == [
        LeaseReport(DIGEST, 7, done=(1,), flow_s=0.5), LeaseReport(DIGEST, 7, returned=(3,))
    ]  # fmt: skip
    assert world.ends[0] == (None, 1, Outcome.DONE)


async def test_reads_that_have_not_begun_do_not_outlive_their_scheduler() -> None:
    """Their task has yet to run, or waits for the storage to be opened."""
    world = World()
    world.work.begin_read(1, 1)
    await world.settle()
    world.work.begin_read(2, 2)
    world.work.cancel_all(0b110, finish=True)
    assert world.sent == [LeaseReport(DIGEST, 7, returned=(1, 2))]
    await world.settle()
    assert all(read.cancelled.is_set() for (read,) in world.read_runs)

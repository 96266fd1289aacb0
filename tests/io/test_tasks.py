import asyncio
import inspect
import os
import signal
import threading
import time

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.tasks import Shared, StopSignal, Tasks, Threads, Turns, asking


async def test_leaving_cancels_the_remaining_tasks() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with Tasks() as tasks:
        _ = tasks.spawn(forever(), name="forever")
        await asyncio.sleep(0)
    assert ended == [True]


async def test_a_failed_task_ends_the_block_with_its_own_error() -> None:
    async def bad() -> None:
        raise ValueError("x")

    async def daemon() -> None:
        async with Tasks() as tasks:
            _ = tasks.spawn(bad(), name="bad")
            await asyncio.sleep(10)

    with pytest.raises(ValueError, match="x"):
        await daemon()


async def test_a_contained_failure_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    async def bad() -> None:
        raise ValueError("x")

    async with Tasks() as tasks:
        tasks.spawn_contained(bad(), name="conn-7")
        await asyncio.sleep(0.01)
    assert "conn-7" in caplog.text


async def test_too_late() -> None:
    async with Tasks() as tasks:
        pass
    with pytest.raises(RuntimeError, match="stopping"):
        _ = tasks.spawn(asyncio.sleep(1), name="late")


async def test_every() -> None:
    calls = []

    async def action() -> None:
        calls.append(1)

    async with Tasks() as tasks:
        tasks.every(0.005, action, name="tick")
        async with asyncio.timeout(30):
            while len(calls) < 2:
                await asyncio.sleep(0.005)


async def test_threads_return_raise_and_are_bounded() -> None:
    pool = Threads(2, name="t")
    seen: set[str] = set()

    def work(x: int) -> int:
        seen.add(threading.current_thread().name)
        time.sleep(0.005)
        if x < 0:
            raise KeyError(x)
        return x * 2

    assert await asyncio.gather(*(pool.run(work, i) for i in range(8))) == [*range(0, 16, 2)]
    assert len(seen) <= 2
    with pytest.raises(KeyError):
        await pool.run(work, -1)


async def test_a_cancelled_wait_does_not_disturb_the_pool() -> None:
    pool, over = Threads(1, name="t"), threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.run(over.wait, 60)
    over.set()
    assert await pool.run(lambda: 7) == 7


async def test_threads_without_work_end_and_come_back() -> None:
    """In an hour of soak each pool of an agent had grown to its limit, and stayed there."""
    pool = Threads(4, name="brief", idle_s=0.02)

    def alive() -> int:
        return sum(each.name.startswith("brief") for each in threading.enumerate())

    for _ in range(3):
        together = threading.Barrier(4)
        await asyncio.gather(*(pool.run(together.wait, 30) for _ in range(4)))
        assert alive() <= 4
        async with asyncio.timeout(30):
            while alive():
                await asyncio.sleep(0.005)


async def test_jobs_that_come_as_threads_end_are_all_done() -> None:
    pool = Threads(3, name="edge", idle_s=0.001)
    for i in range(300):
        assert await pool.run(abs, i) == i
        await asyncio.sleep(0.001)


async def test_where_limit_reached_can_start_the_others_do_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, begin, left = Threads(4, name="scarce", idle_s=0.02), threading.Thread.start, 1

    def start(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    await asyncio.gather(*(pool.run(time.sleep, 0.01) for _ in range(5)))
    await asyncio.sleep(0.3)  # the only one ends
    for _ in range(2):
        with pytest.raises(NotAllowed, match="raise the limit"):
            await pool.run(int)
    left = 4
    assert await pool.run(int) == 0


async def test_few_jobs_keep_few_threads() -> None:
    pool = Threads(8, name="few", idle_s=60)
    together = threading.Barrier(8)
    await asyncio.gather(*(pool.run(together.wait, 30) for _ in range(8)))
    while len(pool._idle) < 8:
        await asyncio.sleep(0)
    names = set()
    for _ in range(20):
        names.add(await pool.run(lambda: threading.current_thread().name))
        # The next job may come before the thread has said that it is idle again.
        while len(pool._idle) < 8:
            await asyncio.sleep(0)
    assert len(names) <= 2


async def test_jobs_that_wait_are_taken_from_one_client_after_the_other() -> None:
    pool, go, done = Threads(1, name="fair"), threading.Event(), list[str]()

    def ask(client: str, count: int) -> list["asyncio.Future[None]"]:
        asking.set(client)
        return [pool.begin_job(lambda: done.append(client)) for _ in range(count)]

    first = pool.begin_job(go.wait, 30)
    waiting = [*ask("a", 50), *ask("b", 2), *ask("c", 1)]
    go.set()
    await asyncio.gather(first, *waiting)
    assert done[:4] == ["a", "b", "c", "a"]
    assert done.count("b") == 2
    assert done.index("b", 2) <= 4
    assert not pool._waiting
    while pool._taken:  # the last result comes before the thread has counted its job as over
        await asyncio.sleep(0)


async def test_a_client_has_a_part_of_the_threads() -> None:
    """Its verifies, a few minutes each, keep nobody else waiting."""
    pool, go = Threads(4, name="part", each=2), threading.Event()
    asking.set("a")
    long = [pool.begin_job(go.wait, 30) for _ in range(20)]
    asking.set("b")
    async with asyncio.timeout(20):
        assert await pool.run(int) == 0
    assert sum(map(len, pool._waiting.values())) == 18
    go.set()
    await asyncio.gather(*long)
    assert not pool._waiting
    async with asyncio.timeout(20):
        while pool._taken:
            await asyncio.sleep(0.001)


async def test_stop_signal() -> None:
    stop = StopSignal()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        await stop.wait()
    assert stop.number == signal.SIGTERM
    loop = asyncio.get_running_loop()
    loop.remove_signal_handler(signal.SIGTERM)
    loop.remove_signal_handler(signal.SIGINT)


async def test_contained_work_that_never_began_leaves_no_coroutine_behind() -> None:
    """It was 'never awaited', and said so from the garbage collector."""

    async def work() -> None:
        await asyncio.sleep(0)

    first, late = work(), work()
    async with Tasks() as tasks:
        tasks.spawn_contained(first, name="cancelled at once")
    with pytest.raises(RuntimeError):
        tasks.spawn_contained(late, name="too late")
    for left in (first, late):
        assert inspect.getcoroutinestate(left) == inspect.CORO_CLOSED


async def test_shared_work_is_done_once() -> None:
    shared, calls = Shared[int](), []

    async def work() -> int:
        calls.append(1)
        await asyncio.sleep(0.01)
        return len(calls)

    assert await asyncio.gather(*(shared.share("a", work) for _ in range(50))) == [1] * 50
    assert await shared.share("a", work) == 2  # later is new
    assert not shared._running


async def test_shared_work_that_fails_fails_for_all_and_a_cancelled_doer_is_replaced() -> None:
    shared = Shared[int]()

    async def bad() -> int:
        await asyncio.sleep(0.01)
        raise ValueError("no")

    ends = await asyncio.gather(*(shared.share("a", bad) for _ in range(3)), return_exceptions=True)
    assert [str(end) for end in ends] == ["no"] * 3

    async def good() -> int:
        await asyncio.sleep(0.01)
        return 7

    async with asyncio.TaskGroup() as group:
        first = group.create_task(shared.share("b", good))
        others = [group.create_task(shared.share("b", good)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
    assert [other.result() for other in others] == [7] * 3
    assert not shared._running


async def test_turns_are_taken_and_forgotten() -> None:
    turns, inside, most = Turns(), 0, 0

    async def visit(key: str) -> None:
        nonlocal inside, most
        async with turns.of(key):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(visit("same") for _ in range(20)))
    assert most == 1
    await asyncio.gather(*(visit(str(n)) for n in range(20)))
    assert not turns._locks


async def test_finished_work_outlives_its_caller() -> None:
    go, ended = asyncio.Event(), list[str]()

    async def work(name: str) -> str:
        await go.wait()
        ended.append(name)
        return name

    async def broken() -> None:
        raise ValueError("of the caller")

    async with Tasks() as tasks:
        left = asyncio.gather(tasks.finish(work("left"), name="left"))
        stays = asyncio.gather(tasks.finish(work("stays"), name="stays"))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(ValueError, match="of the caller"):
            await tasks.finish(broken(), name="broken")
        go.set()
        (name,) = await stays
        assert name == "stays"
        assert ended == ["left", "stays"]

"""A blocked loop is noticed. Cycles are collected often while they are young, and all once enough has ended."""

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from p2pcache.io import event_loop
from p2pcache.io.event_loop import LEAST_ENDED, GcPacing, LoopLag
from p2pcache.io.tasks import Tasks


class Knot:
    """An object in a cycle of its own."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


async def test_the_young_go_at_the_next_look() -> None:
    gc.disable()
    garbage = GcPacing(live=lambda: 0, ended=lambda: 0)
    ghost = weakref.ref(Knot())
    assert ghost() is not None
    await garbage.collect_due()
    assert ghost() is None
    assert garbage.full == 0


async def test_the_old_go_when_enough_connections_have_ended() -> None:
    gc.disable()
    ended = 0
    garbage = GcPacing(live=lambda: 4 * LEAST_ENDED, ended=lambda: ended)
    knot = Knot()
    await garbage.collect_due()  # it has become old
    ghost = weakref.ref(knot)
    del knot
    ended = LEAST_ENDED - 1
    await garbage.collect_due()
    assert ghost() is not None
    ended = LEAST_ENDED
    await garbage.collect_due()
    assert ghost() is None
    assert garbage.full == 1
    await garbage.collect_due()
    assert garbage.full == 1


async def test_a_call_that_blocks_the_loop_is_told_of_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "SLEEP_S", 0.01)
    monkeypatch.setattr(event_loop, "WINDOW_S", 0.5)
    lag = LoopLag()
    assert lag.worst_s == 0.0, "nothing was measured yet"
    async with Tasks() as tasks:
        lag.start(tasks)
        await asyncio.sleep(0.05)
        time.sleep(0.4)
        await asyncio.sleep(0.05)
        assert lag.worst_s >= 0.3
        async with asyncio.timeout(30):
            while lag.worst_s >= 0.3:
                await asyncio.sleep(0.05)

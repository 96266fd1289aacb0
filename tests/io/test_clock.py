"""Time that a process didn't run isn't counted."""

import asyncio

from p2pcache.io.clock import MOST_S, AwakeClock


def test_a_pause_of_the_process_is_no_time() -> None:
    real = 100.0
    clock = AwakeClock(lambda: real)
    began = clock.now()
    for step in (0.25, 0.0, MOST_S):
        real += step
        clock.now()
    assert clock.now() - began == 0.25 + MOST_S
    real += 3600.0
    assert clock.now() - began == 0.25 + 2 * MOST_S
    real += 0.25
    assert clock.now() - began == 0.5 + 2 * MOST_S


def test_somebody_is_told_of_a_pause() -> None:
    real = 100.0
    clock = AwakeClock(lambda: real)
    told: list[float] = []
    clock.on_stood_still = told.append
    for step in (0.25, MOST_S, 3.0, 0.25):
        real += step
        clock.now()
    assert told == [100.25 + 2 * MOST_S]


async def test_the_clock_grows() -> None:
    clock = AwakeClock()
    before = clock.now()
    await asyncio.sleep(0.001)
    assert clock.now() > before
    assert clock.wall() > 1.6e9

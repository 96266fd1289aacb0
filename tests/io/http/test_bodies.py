"""Bodies of requests: too slow ones end, and their memory is dealt out by client."""

import asyncio
from typing import Any

import pytest

from p2pcache.errors import Busy, TimedOut, UsageError
from p2pcache.io.http import bodies
from p2pcache.io.http.bodies import Body, BodyMemory


class Content:
    """A body whose sender is as slow as a test says."""

    def __init__(self, piece: bytes, pause_s: float, pieces: int) -> None:
        self._piece, self._pause_s, self._left = piece, pause_s, pieces

    async def read(self, most: int) -> bytes:
        return (await self.readany())[:most]

    async def readany(self) -> bytes:
        await asyncio.sleep(self._pause_s)
        self._left -= 1
        return self._piece if self._left >= 0 else b""


def body(piece: bytes, pause_s: float = 0.0, pieces: int = 1_000_000) -> Body:
    content: Any = Content(piece, pause_s, pieces)
    return Body(content)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "STRETCH_S", 0.2)
    monkeypatch.setattr(bodies, "STALL_S", 1.0)


@pytest.mark.usefixtures("quick")
async def test_a_body_that_drips_ends() -> None:
    dripping = body(b"x", 0.02)
    with pytest.raises(TimedOut, match="less than 16 KiB"):
        async with asyncio.timeout(10):
            await dripping.exactly(1_000_000)


@pytest.mark.usefixtures("quick")
async def test_a_body_that_slows_down_ends() -> None:
    slowing = body(b"x" * 60_000, 0.0, 10)
    await slowing.exactly(600_000)
    slowing._content = Content(b"x", 0.02, 1_000_000)  # type: ignore[assignment]
    with pytest.raises(TimedOut):
        async with asyncio.timeout(10):
            await slowing.exactly(1_000_000)


@pytest.mark.usefixtures("quick")
async def test_a_slow_body_and_a_slow_reader_are_served() -> None:
    slow = body(b"x" * 1000, 0.02)
    assert await slow.exactly(30_000) == b"x" * 30_000
    for _ in range(3):
        await asyncio.sleep(0.3)  # our disk is slow: no fault of the sender
        assert await slow.part(10) == b"x" * 10


async def test_a_body_that_ends_early_is_an_error() -> None:
    with pytest.raises(UsageError, match="too early"):
        await body(b"abc", pieces=2).exactly(7)
    assert await body(b"abc", pieces=0).part() == b""


def test_memory_is_dealt_out_by_client() -> None:
    memory = BodyMemory(each=10, everyone=25)
    with memory.share_of("a") as first, memory.share_of("a") as second:
        first.hold(6)
        second.hold(4)
        with pytest.raises(Busy) as refused:
            second.hold(1)
        assert refused.value.yours
        with memory.share_of("b") as theirs, memory.share_of("c") as others:
            theirs.hold(10)
            others.hold(5)
            with pytest.raises(Busy) as refused:
                others.hold(1)
            assert not refused.value.yours
        second.hold(0)
    with memory.share_of("a") as again:
        again.hold(10)
    assert not memory._held

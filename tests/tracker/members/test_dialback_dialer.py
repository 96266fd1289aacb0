"""Members are dialled back on real sockets: open ports, closed ports, and ports that never answer."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from p2pcache.core.membership import settings
from p2pcache.core.membership.member_record import Reach
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.settings import DIAL_S
from p2pcache.core.protocol import messages as m
from p2pcache.tracker.members.dialback_dialer import DialbackDialer
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, get, tracker


@contextlib.contextmanager
def swallowing() -> Iterator[int]:
    """A port that answers nobody any more, as behind a firewall: Linux drops what its full queue can't take."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listener.getsockname()[1]
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield port


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def closed_port() -> int:
    with listening() as port:
        return port


def to(number: int, address: str) -> Dial:
    return Dial(number, m.Member(1000 + number, address))


class Answers:
    """What became of dials, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[int, bool]] = []

    def __call__(self, dial: Dial, *, reached: bool) -> None:
        self.said.append((dial.number, reached))

    async def wait(self, count: int) -> dict[int, bool]:
        async with asyncio.timeout(10):
            while len(self.said) < count:
                await asyncio.sleep(0.01)
        return dict(self.said)


async def test_open_closed_swallowing_and_nonsense() -> None:
    answers = Answers()
    dialling = DialbackDialer(answers)
    with listening() as here, swallowing() as void:
        started = asyncio.get_running_loop().time()
        for number, address in enumerate(
            (
                f"127.0.0.1:{here}", f"127.0.0.1:{closed_port()}", f"127.0.0.1:{void}",
                "no port", "nobody.invalid:1", "a..b:1", "[::1%a..b]:1", "\ud800:1", "a\0b:1",
                "10.0.0.1:000080" + 20 * "9",
            )
        ):  # fmt: skip
            dialling.dial(to(number, address))
        said = await answers.wait(10)
        assert said == {number: number == 0 for number in range(10)}
        took_s = asyncio.get_running_loop().time() - started
        assert took_s >= DIAL_S
        assert answers.said.index((2, False)) >= 8, "the void answers last"


async def dialled_by_a_busy_tracker() -> None:
    answers = Answers()
    dialling = DialbackDialer(answers)
    ours, theirs = socket.socketpair()
    with ours, theirs, listening() as here:
        ours.setblocking(False)

        def message() -> None:
            ours.recv(1)
            time.sleep(DIAL_S + 0.1)

        loop = asyncio.get_running_loop()
        loop.add_reader(ours, message)
        dialling.dial(to(1, f"127.0.0.1:{here}"))
        theirs.send(b"x")
        assert await answers.wait(1) == {1: True}
        loop.remove_reader(ours)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_during_a_busy_loop_counts(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """libuv looks at its clock before it looks at its sockets."""
    run(dialled_by_a_busy_tracker())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_tracker_that_stops_gives_its_dials_up() -> None:
    answers = Answers()
    dialling = DialbackDialer(answers)
    with swallowing() as void:
        dialling.dial(to(1, f"127.0.0.1:{void}"))
        await asyncio.sleep(0.1)
        dialling.close()
        await asyncio.sleep(DIAL_S)
    assert not answers.said


async def test_an_unreachable_member_is_named_and_reads_nothing_beside_others(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    reached, hidden = FakeAgent(1), FakeAgent(2)
    reached.credit = hidden.credit = 16
    with listening() as port:
        reached.address, hidden.address = f"127.0.0.1:{port}", f"127.0.0.1:{closed_port()}"
        async with (
            tracker(tmp_path) as app,
            reached.member(app.address),
            hidden.member(app.address),
        ):

            async def unreached() -> list[str]:
                _, body = await get(app.address, "/v1/nodes")
                return [row["node"] for row in body["nodes"] if row["unreached"]]

            async with asyncio.timeout(10):
                while not await unreached():
                    await asyncio.sleep(0.02)
            assert await unreached() == [f"{2:016x}"]
            assert sum("nobody reaches node 0000000000000002 at" in x for x in caplog.messages) == 1
            await reached.enter(X, 64)
            await reached.wait_for(m.Grant)
            await hidden.enter(X, 64)
            await reached.until(lambda: len(reached.origin_reads) == 64)
            assert not hidden.origin_reads


async def test_a_member_that_comes_and_goes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "AGAIN_S", 0.02)
    caplog.set_level(logging.WARNING)
    reached, hidden = FakeAgent(1), FakeAgent(2)
    with listening() as port:
        reached.address, hidden.address = f"127.0.0.1:{port}", f"127.0.0.1:{closed_port()}"
        async with tracker(tmp_path) as app, reached.member(app.address):
            dials = app.tracking.dials
            for _ in range(8):
                async with hidden.member(app.address) as agent:
                    await until(lambda: dials.reach(2) is Reach.UNREACHABLE)
                    await agent.send(m.Leaving())
                    await until(lambda: 2 not in dials._nodes)
    assert sum("nobody reaches node 0000000000000002" in text for text in caplog.messages) == 3


async def test_repeated_bad_announcements_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    one = FakeAgent(1)
    one.address = "10.0.0.1\nCRITICAL forged:1"
    async with tracker(tmp_path) as app:
        for _ in range(8):
            async with one.member(app.address, announce=False) as agent:
                await agent.announce()
                await agent.wait_closed()
    assert sum("dropped member" in text for text in caplog.messages) == 3
    assert not any("forged" in text for text in caplog.messages)

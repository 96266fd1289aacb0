"""Members are dialled back on real sockets: open ports, closed ones, and those that swallow everything."""

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

from p2pcache.core import messages as m
from p2pcache.core.dialback import DIAL_S
from p2pcache.tracker.dialling import Dialling
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


class Answers:
    """What became of dials, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[int, bool]] = []

    def __call__(self, member: m.Member, *, reached: bool) -> None:
        self.said.append((member.node, reached))

    async def wait(self, count: int) -> dict[int, bool]:
        async with asyncio.timeout(10):
            while len(self.said) < count:
                await asyncio.sleep(0.01)
        return dict(self.said)


async def test_open_closed_swallowing_and_nonsense() -> None:
    answers = Answers()
    dialling = Dialling(answers)
    with listening() as here, swallowing() as void:
        started = asyncio.get_running_loop().time()
        for node, address in enumerate(
            (
                f"127.0.0.1:{here}", f"127.0.0.1:{closed_port()}", f"127.0.0.1:{void}",
                "no port", "nobody.invalid:1",
            )
        ):  # fmt: skip
            dialling.dial(m.Member(node, address))
        assert await answers.wait(5) == {0: True, 1: False, 2: False, 3: False, 4: False}
        took_s = asyncio.get_running_loop().time() - started
        assert took_s >= DIAL_S
        assert answers.said.index((2, False)) >= 3, "the void answers last"


async def dialled_by_a_busy_tracker() -> None:
    answers = Answers()
    dialling = Dialling(answers)
    ours, theirs = socket.socketpair()
    with ours, theirs, listening() as here:
        ours.setblocking(False)

        def message() -> None:
            ours.recv(1)
            time.sleep(DIAL_S + 0.1)

        loop = asyncio.get_running_loop()
        loop.add_reader(ours, message)
        dialling.dial(m.Member(1, f"127.0.0.1:{here}"))
        theirs.send(b"x")
        assert await answers.wait(1) == {1: True}
        loop.remove_reader(ours)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_answered_while_the_tracker_was_busy_is_reached(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """libuv looks at its clock before it looks at its sockets."""
    run(dialled_by_a_busy_tracker())


async def test_a_tracker_that_stops_gives_its_dials_up() -> None:
    answers = Answers()
    dialling = Dialling(answers)
    with swallowing() as void:
        dialling.dial(m.Member(1, f"127.0.0.1:{void}"))
        await asyncio.sleep(0.1)
        dialling.close()
        await asyncio.sleep(DIAL_S)
    assert not answers.said


async def test_who_cannot_be_dialled_is_named_and_reads_nothing_while_another_does(
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

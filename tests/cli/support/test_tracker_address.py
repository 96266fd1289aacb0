"""`--agent` with a tracker's address: no command takes a tracker for an agent."""

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import Unreachable
from tests.cli.conftest import Run
from tests.tracker.kit import tracker


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real tracker, in a thread: commands need the main one."""
    address, loop, end = "", asyncio.new_event_loop(), asyncio.Event()
    listening = threading.Event()

    async def serve(origin: Path) -> None:
        nonlocal address
        async with tracker(origin) as app:
            address = app.address
            listening.set()
            await end.wait()

    thread = threading.Thread(
        target=lambda: loop.run_until_complete(serve(tmp_path_factory.mktemp("origin")))
    )
    thread.start()
    assert listening.wait(30)
    yield f"http://{address}"
    loop.call_soon_threadsafe(end.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    "command",
    ["ls", "df", "ps", "pull a:b", "warm a:b", "pins", "history", "nodes", "locate a:b", "status"],
)
def test_a_tracker_is_no_agent(url: str, run: Run, command: str) -> None:
    result = run(*command.split(), "--agent", url)
    assert isinstance(result.exception, Unreachable), result.output
    assert str(result.exception) == f"what answers at {url} is a tracker, no agent; check --agent"


def test_each_answer_of_a_tracker_says_what_it_is(url: str) -> None:
    for path in ("/healthz", "/metrics", "/"):
        with urllib.request.urlopen(url + path) as answer:
            assert answer.headers["P2pcache-Role"] == "tracker"

"""An agent inside another process: `p2pcache pull` without a daemon."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from typing import Any

import msgspec

from p2pcache.agent.jobs.events import Events
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import Lost, P2PCacheError
from p2pcache.io.sources.settings import SourceSettings

Pulling = Callable[..., Generator[dict[str, Any], None, None]]
"""From a ref and the options of `LoneAgent.pull_events` to the events of a pull, as a client of the API gets them."""

LOOK_S = 0.5  # between two looks whether the agent still lives, while nothing comes
_ENDED = "the agent of this command has ended"
_Came = dict[str, Any] | BaseException | None  # an event, why there are no more, or None at the end


@contextmanager
def run_embedded(
    settings: AgentSettings, sources: dict[str, SourceSettings] | None = None
) -> Iterator[str]:
    """Run an agent on a thread of its own for the length of the block; yield its socket path.

    Args:
        settings: of the agent.
        sources: from which referenced models are read, by name.

    Raises:
        P2PCacheError: the agent can't start.
    """
    from p2pcache.agent.app import AgentApp

    with _on_a_thread(lambda: AgentApp(settings, sources=sources, of_command=True).running()):
        yield settings.socket


@contextmanager
def run_lone(
    settings: AgentSettings, sources: dict[str, SourceSettings] | None = None
) -> Iterator[Pulling]:
    """As `run_embedded`, an agent without tracker and socket; yield what begins a pull."""
    from p2pcache.agent.fetching.lone import LoneAgent

    agents: list[LoneAgent] = []

    def running() -> AbstractAsyncContextManager[None]:
        agents.append(LoneAgent(settings, sources))
        return agents[0].running()

    with _on_a_thread(running) as loop:

        def pull(*args: Any, **options: Any) -> Generator[dict[str, Any], None, None]:
            return _events(loop, lambda: agents[0].pull_events(*args, **options))

        yield pull


@contextmanager
def _on_a_thread(
    running: Callable[[], AbstractAsyncContextManager[None]],
) -> Iterator[asyncio.AbstractEventLoop]:
    started = threading.Event()
    trouble: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with running():
            loops.append((asyncio.get_running_loop(), stop))
            started.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            trouble.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="embedded-agent", daemon=True)
    thread.start()
    started.wait()
    if trouble:
        raise trouble[0]
    loop, stop = loops[0]
    try:
        yield loop
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended with an error, which follows
            loop.call_soon_threadsafe(stop.set)
        thread.join()
        for error in trouble:
            if isinstance(error, P2PCacheError):
                raise error
            why = f"{_ENDED}: {type(error).__name__}: {error}"
            raise Lost(f"{why}; run the command again") from error


def _events(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], Events]
) -> Generator[dict[str, Any], None, None]:
    """What `begin` yields on the loop; closing the iterator closes it there."""
    came: queue.SimpleQueue[_Came] = queue.SimpleQueue()

    async def feed() -> None:
        try:
            async with aclosing(begin()) as events:
                async for event in events:
                    came.put(msgspec.to_builtins(event, str_keys=True))
            came.put(None)
        except asyncio.CancelledError:
            came.put(Lost("the pull stopped in the middle; run the command again to resume"))
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            came.put(error)

    work = feed()
    try:
        feeding = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed
        work.close()
        raise _ended() from None
    try:
        while (event := _next(came, loop, work)) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            feeding.cancel()


def _next(
    came: "queue.SimpleQueue[_Came]", loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, None],
) -> _Came:  # fmt: skip
    """What came next. A loop that closes before `work` has begun puts nothing there.

    Raises:
        Lost: the loop has closed, and nothing more comes.
    """
    closed = False
    while True:
        try:
            return came.get(timeout=LOOK_S)
        except queue.Empty:
            if closed:
                work.close()
                raise _ended() from None
            closed = loop.is_closed()


def _ended() -> Lost:
    return Lost(f"{_ENDED}; run the command again")

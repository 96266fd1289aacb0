"""An agent inside another process: `p2pcache pull` without a daemon."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from p2pcache.agent.app import AgentApp
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import P2PCacheError
from p2pcache.io.sources.settings import SourceSettings


@contextlib.contextmanager
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
    started = threading.Event()
    trouble: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with AgentApp(settings, sources=sources).running():
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
    try:
        yield settings.socket
    finally:
        loop, stop = loops[0]
        with contextlib.suppress(RuntimeError):  # the loop has ended with an error, which follows
            loop.call_soon_threadsafe(stop.set)
        thread.join()
        for error in trouble:
            if isinstance(error, P2PCacheError):
                raise error

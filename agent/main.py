"""Run an agent in the foreground until a signal stops it."""

import faulthandler

import uvloop

from p2pcache.agent.app import AgentApp
from p2pcache.agent.node.location import located
from p2pcache.agent.settings import AgentSettings
from p2pcache.io import log
from p2pcache.io.disk.syscalls import give_back_blocks_of
from p2pcache.io.event_loop import usual_rule
from p2pcache.io.http.connection_limits import raise_file_limit
from p2pcache.io.service_manager import Notifier
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.tasks import StopSignal, on_hangup

# Freed blocks of at least this size go back to the system at once. Parts of an upload are larger. Blocks that are
# made and freed often are smaller, or reused.
LARGE_BYTES = 1 << 20


def run(settings: AgentSettings, sources: dict[str, SourceSettings] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0: an ordered end).

    Args:
        settings: of the agent.
        sources: from which models may be imported, by name.

    Raises:
        P2PCacheError: the agent can't start.
    """
    log.setup(settings.log_level, settings.log_format)
    raise_file_limit()
    give_back_blocks_of(LARGE_BYTES)
    faulthandler.enable()  # the watchdog's SIGABRT then leaves every thread's trace in the log
    return uvloop.run(_serve(settings, sources))


async def _serve(settings: AgentSettings, sources: dict[str, SourceSettings] | None) -> int:
    stop = StopSignal()
    with Notifier.from_environ() as manager:
        app = AgentApp(await located(settings), sources=sources)
        on_hangup(app.reload)
        async with app.running():
            usual_rule()  # now: a full cache makes hundreds of thousands of objects that stay, too
            app.warms.resume()
            manager.ready(lambda: _headline(app))
            await stop.wait()
            manager.stopping("finishing uploads and reads")
    return 0


def _headline(app: AgentApp) -> str:
    """The agent's state in one line, for `systemctl status`."""
    if reasons := app.queries.reasons():
        return f"not ready: {'; '.join(reasons)}"
    return f"ready: {len(app.downloads.swarms)} models, {len(app.downloads.running)} pulls running"

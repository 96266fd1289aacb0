"""Run an agent in the foreground until it is told to stop."""

import uvloop

from p2pcache.agent.app import AgentApp
from p2pcache.agent.settings import AgentSettings
from p2pcache.io import log
from p2pcache.io.tasks import StopSignal


def run(settings: AgentSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0: an ordered end).

    Raises:
        P2PCacheError: the agent can't start.
    """
    log.setup(settings.log_level, settings.log_format)
    return uvloop.run(_serve(settings))


async def _serve(settings: AgentSettings) -> int:
    stop = StopSignal()
    async with AgentApp(settings).running():
        await stop.wait()
    return 0

"""Run the tracker in the foreground until it is told to stop."""

import uvloop

from p2pcache.io import log
from p2pcache.io.tasks import StopSignal
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.settings import TrackerSettings


def run(settings: TrackerSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0: an ordered end).

    Raises:
        P2PCacheError: the tracker can't start.
    """
    log.setup(settings.log_level, settings.log_format)
    return uvloop.run(_serve(settings))


async def _serve(settings: TrackerSettings) -> int:
    stop = StopSignal()
    async with TrackerApp(settings).running():
        await stop.wait()
    return 0

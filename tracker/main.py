"""Run the tracker in the foreground until a signal stops it."""

import faulthandler

import uvloop

from p2pcache.io import log
from p2pcache.io.gc_pacing import usual_rule
from p2pcache.io.http.connection_limits import raise_file_limit
from p2pcache.io.service_manager import Notifier
from p2pcache.io.tasks import StopSignal, on_hangup
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.settings import TrackerSettings


def run(settings: TrackerSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0: an ordered end).

    Raises:
        P2PCacheError: the tracker can't start.
    """
    log.setup(settings.log_level, settings.log_format)
    raise_file_limit()
    faulthandler.enable()  # so the watchdog's SIGABRT leaves every thread's trace in the log
    usual_rule()
    return uvloop.run(_serve(settings))


async def _serve(settings: TrackerSettings) -> int:
    stop = StopSignal()
    with Notifier.from_environ() as manager:
        app = TrackerApp(settings)
        on_hangup(app.reload)
        async with app.running():
            app.pace_garbage()
            manager.ready(app.headline)
            await stop.wait()
            manager.stopping("saying goodbye")
    return 0

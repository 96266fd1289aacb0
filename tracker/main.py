"""Run the tracker in the foreground until a signal stops it."""

import contextlib
import faulthandler
import logging
import socket

import uvloop

from p2pcache.core.coordinator.tenure import Ending
from p2pcache.io import log
from p2pcache.io.event_loop import usual_rule
from p2pcache.io.http import server
from p2pcache.io.http.connection_limits import raise_file_limit
from p2pcache.io.service_manager import Notifier
from p2pcache.io.tasks import StopSignal, Tasks, on_hangup
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.tenure.candidacy import Candidacy, open_candidacy
from p2pcache.tracker.tenure.standby import StandbyApp

_log = logging.getLogger(__name__)

_ENDINGS = {
    Ending.LATE: "this process was held up, or the record couldn't be renewed in time",
    Ending.OTHER: "another tracker wrote itself into the record",
    Ending.DELETED: "the record was deleted",
}


def run(settings: TrackerSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0: an ordered end).

    Raises:
        P2PCacheError: the tracker can't start.
    """
    log.setup(settings.log_level, settings.log_format)
    raise_file_limit()
    faulthandler.enable()  # the watchdog's SIGABRT then leaves every thread's trace in the log
    usual_rule()
    return uvloop.run(_serve(settings))


async def _serve(settings: TrackerSettings) -> int:
    stop = StopSignal()
    with Notifier.from_environ() as manager:
        if settings.lease != "off":
            with contextlib.closing(server.listen_tcp(settings.listen)) as sock:
                _, port = server.parse_listen(server.bound_address(sock))
                await take_turns(settings, open_candidacy(settings, port), sock, stop, manager)
            return 0
        app = TrackerApp(settings)
        on_hangup(app.reload)
        async with app.running():
            app.pace_garbage()
            manager.ready(app.headline)
            await stop.wait()
            manager.stopping("saying goodbye")
    return 0


async def take_turns(
    settings: TrackerSettings,
    tenure: Candidacy,
    sock: socket.socket,
    stop: StopSignal,
    manager: Notifier,
) -> None:
    """Be a standby and the active tracker by turns, until `stop`. Each tenure begins with a tracker that knows nothing.

    Args:
        settings: of the tracker.
        tenure: our candidacy, which doesn't run yet.
        sock: that listens, by turns for both; it stays open.
        stop: the end.
        manager: is told what we are.
    """
    async with Tasks() as tasks:
        _ = tasks.spawn(tenure.run(), name="tenure")
        _ = tasks.spawn(_wake_at_stop(stop, tenure), name="stop")
        while not stop.asked.is_set():
            turn = _be_active if tenure.active else _stand_by
            await turn(settings, tenure, sock.dup(), stop, manager)


async def _wake_at_stop(stop: StopSignal, tenure: Candidacy) -> None:
    await stop.wait()
    tenure.wake()


async def _stand_by(
    settings: TrackerSettings,
    tenure: Candidacy,
    sock: socket.socket,
    stop: StopSignal,
    manager: Notifier,
) -> None:
    app = StandbyApp(settings, tenure)
    on_hangup(app.read_keys)
    async with app.running(sock):
        manager.ready(app.headline)
        await tenure.wait_for(lambda: stop.asked.is_set() or tenure.active)
        if stop.asked.is_set():
            manager.stopping("saying goodbye")
            await tenure.resign()


async def _be_active(
    settings: TrackerSettings,
    tenure: Candidacy,
    sock: socket.socket,
    stop: StopSignal,
    manager: Notifier,
) -> None:
    app, ours = TrackerApp(settings, tenure=tenure), tenure.generation
    on_hangup(app.reload)
    async with app.running(sock):
        app.pace_garbage()
        manager.ready(app.headline)
        await tenure.wait_for(lambda: stop.asked.is_set() or not tenure.holds(ours))
        if stop.asked.is_set():
            manager.stopping("saying goodbye")
            await (
                tenure.resign()
            )  # first: agents that hear our goodbye find another tracker that is active
        else:
            _log.warning("no longer active: %s", _end_of(tenure))


def _end_of(tenure: Candidacy) -> str:
    """Why this is no longer the active tracker, and which one is, if that is known."""
    url = tenure.active_url
    return _ENDINGS[tenure.ending] + (f"; {url} is active" if url not in ("", tenure.url) else "")

"""The tracker's composition root: its parts, in the order in which they start and stop."""

import contextlib
import dataclasses
import logging
import secrets
import socket
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import UsageError
from p2pcache.ids import NodeId
from p2pcache.io import pools
from p2pcache.io.clock import LOOK_S, AwakeClock
from p2pcache.io.event_loop import GcPacing, LoopLag
from p2pcache.io.http import server
from p2pcache.io.http.connection_limits import connection_limit
from p2pcache.io.origins.public_words import openly
from p2pcache.io.security.cluster_key import WATCH_S as KEY_WATCH_S
from p2pcache.io.security.cluster_key import KeyWatch, check_exposure, read_cluster_key
from p2pcache.io.security.tls import WATCH_S, open_tls
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.answers import Answers
from p2pcache.tracker.api import Api
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.last_hour.last_hour import LastHour
from p2pcache.tracker.last_hour.traffic import EVERY_S
from p2pcache.tracker.members.hub import MemberHub
from p2pcache.tracker.metrics import TrackerMetrics
from p2pcache.tracker.node_questions import NodeQuestions
from p2pcache.tracker.pool.admission import Admission
from p2pcache.tracker.pool.crossing import Crossing
from p2pcache.tracker.pool.keeping import LOOK_S as KEEP_LOOK_S
from p2pcache.tracker.pool.keeping import Keeping
from p2pcache.tracker.questions import Questions
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.state_notes import StateNotes
from p2pcache.tracker.tenure.candidacy import Candidacy
from p2pcache.tracker.views import Views
from p2pcache.tracker.warming import Warming

_log = logging.getLogger(__name__)

PROBE_S = 5.0  # between two probes of the origin, for /readyz
REQUEST_BYTES = 64 << 10  # every call is a GET, and a handshake has 1 KiB
MOST_MEMBERS = 20_000  # connections, twice the largest supported cluster
SILENCE_S = 10.0  # docs/protocol.md; a late heartbeat, and four seconds
SAME_KIND_S = 60.0  # between two lines about one kind of trouble with storage
NOTES_S = 5.0  # between two writes of the notes


class TrackerApp:
    """One tracker: `async with TrackerApp(...).running():` serves until the block ends."""

    def __init__(
        self,
        settings: TrackerSettings,
        *,
        members: MemberSettings | None = None,
        leases: LeaseSettings | None = None,
        tenure: Candidacy | None = None,
    ) -> None:
        """Build the parts; nothing listens yet.

        Args:
            settings: what the operator set.
            members: other settings, for tests.
            leases: other settings, for tests.
            tenure: ours, where several trackers agree on the active one.

        Raises:
            UsageError, NotAllowed: a setting can't work (address, key, origin, state dir).
        """
        for name in ("leases_in_flight", "neighbours"):
            if getattr(settings, name) < 1:
                raise UsageError(f"{name} must be at least 1")
        self._secret = read_cluster_key(settings.cluster_key_file)
        self._key = KeyWatch(settings.cluster_key_file, self._secret)
        host, _ = server.parse_listen(settings.listen)
        self.tls = open_tls(settings, "tracker")
        check_exposure(host, self._secret, insecure=settings.insecure, tls=self.tls is not None)
        self.settings = settings
        self.address = settings.listen
        self._clock = AwakeClock()
        self._notes = StateNotes(Path(settings.state_dir) if settings.state_dir else None)
        self._tasks = Tasks()
        self.catalog = Catalog(settings.origin, self._tasks)
        self.tracking = TrackerState(
            epoch=secrets.randbits(63) if tenure is None else tenure.generation,
            members=dataclasses.replace(
                members or MemberSettings(expiry_s=SILENCE_S),
                neighbours=settings.neighbours,
                certified=self.tls is not None,
            ),
            leases=dataclasses.replace(
                leases or LeaseSettings(), in_flight=settings.leases_in_flight
            ),
            origin=settings.origin,
            remembered=self._notes.load_members(self._clock.wall()),
        )
        self._clock.on_stood_still = self.tracking.on_stood_still
        self._tenure = tenure
        self._views = Views(self.tracking, self.catalog, self._clock)
        self._told_trouble = ("", "")  # of storage, in the log: its kind, and its text
        self._told_at = -inf
        self._last_hour = LastHour(self.tracking, self._clock)
        self._answers = Answers(self._views, self._last_hour)
        of_nodes = NodeQuestions(self.tracking)
        warming = Warming(self.tracking, self.catalog, self._clock, of_nodes)
        admission = Admission(self.tracking, settings.namespace_quotas, self._clock)
        self.keeping = Keeping(
            self.tracking, self.catalog, self._clock, admission=admission, grace_s=settings.keep_grace_s,
        )  # fmt: skip
        questions = Questions(
            self.catalog, self._answers, warming, of_nodes, admission, self.keeping,
            Crossing(self.tracking, self._clock),
        )  # fmt: skip
        if tenure is not None:
            self.tracking.may_grant = questions.may_write = tenure.may_act
            self.keeping.may_write = tenure.may_act
        self.members = MemberHub(
            self.tracking, node=secrets.randbits(63), secret=self._secret, questions=questions,
            catalog=self.catalog, tasks=self._tasks, clock=self._clock, last_hour=self._last_hour,
            certified=self.tls is not None,
        )  # fmt: skip
        of_nodes.send_to = self.keeping.send_to = self.members.send_to
        self._views.pool_state = self.keeping.told.node_state
        self._views.kept = self.keeping.keeper.copies
        self._views.connected = lambda: len(self.members)
        self._views.warnings = self._warnings
        self._views.doubts = tenure.reasons if tenure is not None else list
        self._lag = LoopLag()
        metrics = TrackerMetrics(
            tracking=self.tracking, members=self.members, questions=questions, catalog=self.catalog,
            clock=self._clock, lag=self._lag, ready=lambda: not self._views.reasons(), tls=self.tls,
            tenure=tenure, keeping=self.keeping,
        )  # fmt: skip
        self._api = Api(self.members, self._views, self._answers, metrics)

    @contextlib.asynccontextmanager
    async def running(self, sock: socket.socket | None = None) -> AsyncIterator[None]:
        """Listen, yield, then stop in order: no new members, goodbyes, notes.

        Args:
            sock: to listen on, which is closed at the end; default: one at the address of the settings.

        Raises:
            UsageError, NotAllowed: the address can't be listened on.
        """
        sock = sock or server.listen_tcp(self.settings.listen)
        self.address = server.bound_address(sock)
        try:
            tls = None if self.tls is None else self.tls.visitors
            room = connection_limit(MOST_MEMBERS, share=0.9)
            app = self._api.application()
            async with (
                self._tasks,
                server.serving(app, [sock], tls=tls, connections=room, request_bytes=REQUEST_BYTES),
            ):
                self._lag.start(self._tasks)
                self._tasks.every(LOOK_S, self._clock.keep_awake, name="clock")
                self._tasks.every(PROBE_S, self._probe, name="probe")
                self._tasks.every(EVERY_S, self._last_hour.sample, name="last-hour")
                self._tasks.every(NOTES_S, self._note, name="notes")
                self._tasks.every(KEEP_LOOK_S, self.keeping.look, name="keep")
                self._tasks.every(KEY_WATCH_S, self._key.watch, name="key")
                if self.tls is not None:
                    self._tasks.every(WATCH_S, self.tls.watch, name="certificate")
                self._tasks.spawn_contained(self._probe(), name="first-probe")
                await self._last_hour.sample()
                self._say_hello()
                yield
                _log.info("stopping: saying goodbye to %d members", len(self.members))
                memory = self.tracking.remembered_members()  # before members leave
                await self.members.close()
                await self._save(memory)
        finally:
            self.catalog.close()

    def pace_garbage(self) -> None:
        """Pace the garbage collector; for a process that only runs a tracker."""
        members = self.members
        GcPacing(live=lambda: len(members), ended=lambda: members.ended).start(self._tasks)

    def reload(self) -> None:
        """SIGHUP: read key and certificate again. All else needs a restart."""
        self._key.reload()
        if self.tls is not None:
            self.tls.reload()

    def headline(self) -> str:
        """The tracker's state in one line, for `systemctl status`."""
        reasons = self._views.reasons()
        return (
            f"not ready: {'; '.join(reasons)}" if reasons else f"ready: {len(self.members)} members"
        )

    def _say_hello(self) -> None:
        origin = self.settings.origin or "no origin"
        _log.info("tracker listening on %s, %s", self.address, origin)
        if self._tenure is not None:
            _log.info("active, generation %d, by %s", self._tenure.generation, self._tenure.where)
        if self.tls is not None:
            _log.info("members show certificates; this is %s", self.tls.member)
        elif not self._secret.key:
            who = "anybody who reaches this port" if self.settings.insecure else "local processes"
            _log.warning("no cluster key: %s can join and read every model", who)
        self._log_trouble()

    def _warnings(self) -> list[str]:
        """What an operator should look at although the tracker is ready."""
        return self.members.log.warnings() + (self.tls.warnings() if self.tls is not None else [])

    async def _probe(self) -> None:
        await self.catalog.probe()
        self._log_trouble()

    def _log_trouble(self) -> None:
        """Say when storage begins and ceases to fail; what was said last counts, for other calls see it, too.

        Texts of one kind of trouble differ in ids of requests and in how long somebody waited.
        """
        trouble, now = self.catalog.trouble, self._clock.now()
        told = ("", "") if trouble is None else (openly(trouble), str(trouble))
        again = told[0] == self._told_trouble[0] and now - self._told_at < SAME_KIND_S
        if told == self._told_trouble or again:
            return
        self._told_trouble, self._told_at = told, now
        _log.info("ready") if trouble is None else _log.warning("not ready: origin: %s", trouble)

    async def _note(self) -> None:
        await self._save(self.tracking.remembered_members())

    async def _save(self, memory: dict[str, list[NodeId]]) -> None:
        await pools.STEPS.run(self._notes.save_members, memory, self._clock.wall())

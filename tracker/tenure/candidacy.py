"""This tracker's candidacy: performs what its contender decides, and says when it becomes active or ceases to be.

The clock goes on while the process is stopped and while the machine sleeps, unlike the daemon's other clock: a tenure
that was slept through is over.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable

from p2pcache.core.coordinator.settings import TENURE_S
from p2pcache.core.coordinator.tenure import Contender, Ending, Look, Write
from p2pcache.errors import Conflict, P2PCacheError, UsageError
from p2pcache.io.host.kube_api import KubeApi, server_url
from p2pcache.io.http.own_addresses import first_address, is_wildcard
from p2pcache.io.http.server import parse_listen
from p2pcache.io.tenures.in_kubernetes import KubernetesTenure
from p2pcache.io.tenures.in_origin import OriginTenure
from p2pcache.io.tenures.store import CALL_S, TenureStore
from p2pcache.tracker.settings import TrackerSettings

_log = logging.getLogger(__name__)

NAP_S = 0.5  # at most, between two looks at the clock: a timer sleeps with the process


def boot_clock() -> float:
    """Seconds since the machine started, those included for which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Candidacy:
    """One contender, and the store of the tenure's record."""

    def __init__(
        self,
        store: TenureStore,
        url: str,
        *,
        ttl_s: float = TENURE_S,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """A standby; nothing is asked before `run`.

        Args:
            store: of the record.
            url: where others reach this tracker.
            ttl_s: how long a tenure lasts without renewal; shorter in tests.
            clock: seconds.
        """
        self.where = store.where
        self.url = url
        self.trouble: P2PCacheError | None = None  # why the last call to the store failed
        self._store = store
        self._clock = clock
        self._contender = Contender(
            f"{socket.gethostname()[:60]}_{secrets.token_hex(6)}", url,
            first=int(time.time()), now=clock(), ttl_s=ttl_s,
        )  # fmt: skip
        self._calling = (
            asyncio.Lock()
        )  # one call to the store at a time, and the decisions around it
        self._news = asyncio.Event()
        self._told: tuple[bool, int, str] = (False, 0, "")

    @property
    def active(self) -> bool:
        """Whether this is the active tracker, as far as anybody knows."""
        return self._contender.active

    @property
    def generation(self) -> int:
        """Of our tenure, while active; else of the latest one that was seen."""
        return self._contender.generation if self.active else self._contender.highest

    @property
    def active_url(self) -> str:
        """Where the active tracker is; "": not known."""
        return self._contender.active_url(self._clock())

    @property
    def ending(self) -> Ending:
        """Why our last tenure ended."""
        return self._contender.ending

    def may_act(self) -> bool:
        """Whether this is the active tracker, and surely no other one is. Asked before each batch of grants."""
        return self._contender.may_act(self._clock())

    def reasons(self) -> list[str]:
        """Why this tracker can't do its part, for /readyz; without a store's own words. The log has those."""
        if self.active and not self.may_act():
            return ["its tenure ended and can't be renewed: it grants nothing"]
        if self.trouble is not None:
            return ["the record of the active tracker can't be read or written"]
        return []

    def holds(self, generation: int) -> bool:
        """Whether we are active, in the tenure of this generation."""
        return self.active and self._contender.generation == generation

    async def run(self) -> None:
        """Be a contender until cancelled.

        Raises:
            UsageError: the store can't keep such a record.
        """
        while True:
            async with self._calling:
                call = self._contender.next_call(self._clock())
                if call is not None:
                    await self._perform(call)
            self._tell()
            pause = self._contender.next_wakeup() - self._clock()
            await asyncio.sleep(min(NAP_S, max(0.0, pause)))

    async def wait_for(self, true: Callable[[], bool]) -> None:
        """Wait until `true()`, which is asked again when the active tracker changes, and at `wake`."""
        while not true():
            await self._news.wait()

    def wake(self) -> None:
        """Let those who wait look again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def resign(self) -> None:
        """Give the tenure back, so that a standby takes over at once, and be no contender any more."""
        async with self._calling:
            given = self._contender.resign()
            if given is not None:
                with contextlib.suppress(P2PCacheError):
                    await self._store.write(given.record, given.expect)
                _log.info("gave the tenure back")

    async def _perform(self, call: Look | Write) -> None:
        contender = self._contender
        try:
            if isinstance(call, Look):
                found = await self._store.look()
                contender.on_seen(found, self._clock())
            else:
                version = await self._store.write(call.record, call.expect)
                contender.on_seen((call.record, version), self._clock())
        except Conflict:
            contender.on_conflict(self._clock())
        except UsageError:
            raise
        except P2PCacheError as error:
            contender.on_failed(self._clock())
            self._set_trouble(error)
            return
        self._set_trouble(None)

    def _set_trouble(self, error: P2PCacheError | None) -> None:
        if str(error or "") != str(self.trouble or ""):
            if error is not None:
                _log.warning("%s: %s", self.where, error)
            else:
                _log.info("%s: well again", self.where)
        self.trouble = error

    def _tell(self) -> None:
        """Wake those who wait, if the active tracker changed."""
        state = (self.active, self.generation, self.active_url)
        if state == self._told:
            return
        self._told = state
        self.wake()


def open_candidacy(settings: TrackerSettings, port: int) -> Candidacy:
    """The candidacy that the settings ask for.

    Args:
        settings: of the tracker, whose `lease` isn't off.
        port: that it listens on.

    Raises:
        UsageError: a setting can't work.
        NotAllowed: the pod has no service account.
    """
    url = own_url(settings, port)
    if settings.lease == "kubernetes":
        api = KubeApi(server_url("a Lease"), call_s=CALL_S)
        return Candidacy(KubernetesTenure(api, settings.lease_name), url)
    if not settings.origin:
        raise UsageError("--lease origin keeps its record at the origin: set --origin URL")
    return Candidacy(OriginTenure(settings.origin, settings.lease_name), url)


def own_url(settings: TrackerSettings, port: int) -> str:
    """URL at which agents reach this tracker.

    Raises:
        UsageError: nobody says at which address.
    """
    scheme = "https" if settings.tls_cert else "http"
    if settings.advertise:
        host, advertised = parse_listen(settings.advertise)
        shown = f"[{host}]" if ":" in host else host
        return f"{scheme}://{shown}:{advertised}"
    host, _ = parse_listen(settings.listen)
    if is_wildcard(host):
        host = first_address()
    if not host:
        raise UsageError(
            "listening on every address, there is none that agents can dial; set --advertise HOST:PORT"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"

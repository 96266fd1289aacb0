"""Which tracker the agent dials next: the configured ones in order, and each address of a name that has several.

A standby says where the active tracker is. That is a hint: only a tracker that is configured is dialled.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from p2pcache.core.protocol.address import tracker_urls
from p2pcache.errors import UsageError
from p2pcache.io import pools

MOST = 16  # trackers in one round; a name with more addresses is no tracker's
LOOK_UP_S = 3.0  # for the addresses of a name


class Target(NamedTuple):
    """One tracker: its URL as configured, and the address to dial if the name has several; "": look it up."""

    url: str
    address: str = ""

    @property
    def place(self) -> tuple[str, int | None]:
        """Host and port that are dialled."""
        parts = urlsplit(self.url)
        return self.address or parts.hostname or "", parts.port

    def __str__(self) -> str:
        return f"{self.url} ({self.address})" if self.address else self.url


class TrackerRoute:
    """The order in which trackers are dialled. A round dials each once, unless a standby leads to another one."""

    def __init__(
        self,
        trackers: str,
        addresses_of: Callable[[str, int], Awaitable[list[str]]] | None = None,
        *,
        tls: bool = False,
    ) -> None:
        """Nothing is looked up yet.

        Args:
            trackers: their URLs, separated by commas.
            addresses_of: the addresses of a host and port, of one family; for tests.
            tls: members show certificates.

        Raises:
            UsageError: one is no tracker's URL, or has another scheme than members use, or there is none.
        """
        self.urls = tracker_urls(trackers)
        if not self.urls:
            raise UsageError("no URL of a tracker; expected http://HOST:PORT")
        for url in self.urls if tls else ():
            if not url.startswith("https://"):
                raise UsageError(
                    f"in mTLS mode the tracker's URL begins with https://; {url} doesn't"
                )
        self.reached: Target | None = None  # it answers, and we may be waiting there
        self.standby: Target | None = None  # it answered so, and hasn't failed since
        self.failures: dict[Target, str] = {}
        """Why each tracker that was dialled didn't take us, since we were a member last."""
        self._addresses_of = addresses_of or _addresses_of
        self._all: list[Target] = []  # of this round
        self._left: deque[Target] = deque()  # to be dialled in this round
        self._tried: set[Target] = set()
        self._last: Target | None = None  # goes first in the next round, or last if it is away
        self._away = False

    @property
    def more(self) -> bool:
        """Whether this round goes on."""
        return bool(self._left)

    @property
    def several(self) -> bool:
        """Whether there is more than one tracker, as far as names tell."""
        return len(self._all) > 1

    @property
    def trouble(self) -> str:
        """Why the trackers that were dialled didn't take us, for people; "": none was."""
        told = [
            f"{t} is not reachable: {why}" for t, why in self.failures.items() if t != self.reached
        ]
        return f"tracker {'; tracker '.join(told)}" if told else ""

    @property
    def hopeful(self) -> bool:
        """Whether one of several trackers may be or become the active one: it answers, or hasn't failed us.

        A standby answers, also between two of our visits to it.
        """
        away = self.failures.keys() - {self.reached, self.standby}
        return self.several and any(target not in away for target in self._all)

    async def next_target(self) -> Target:
        """The tracker to dial now. Looks up names at the beginning of a round."""
        if not self._left:
            await self._begin_round()
        target, self.reached = self._left.popleft(), None
        self._tried.add(target)
        return target

    def on_lost(self, target: Target, *, away: bool) -> None:
        """We were with this tracker; the next round begins.

        Args:
            target: the tracker, which is dialled first.
            away: it fell silent, or said goodbye: it is dialled last.
        """
        self._left.clear()
        self._last, self._away = target, away

    def lead_to(self, active: str, *, again: bool = False) -> bool:
        """A standby named the active tracker; whether that one is dialled next.

        Args:
            active: its URL, of which we believe that it is one of ours, or nothing.
            again: even if it was dialled in this round: the standby says that something has changed.
        """
        target = self._target_at(active)
        if target is None or (target in self._tried and not again):
            return False
        if target in self._left:
            self._left.remove(target)
        self._left.appendleft(target)
        return True

    def knows(self, url: str, only: Target | None = None) -> bool:
        """Whether this is a tracker of ours, or this one alone."""
        found = self._target_at(url)
        return found is not None and only in (None, found)

    def _target_at(self, url: str) -> Target | None:
        try:
            place = Target(url).place
        except ValueError:  # what a standby says is untrusted
            return None
        return next((t for t in self._all if place in (t.place, Target(t.url).place)), None)

    async def _begin_round(self) -> None:
        found: list[Target] = []
        for url in self.urls:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            addresses = await self._addresses_of(parts.hostname or "", port)
            several = addresses if len(addresses) > 1 else [""]
            found += [Target(url, address) for address in several]
        found = list(dict.fromkeys(found))[:MOST]
        if self._last in found:
            found.remove(self._last)
            found.insert(len(found) if self._away else 0, self._last)
        self._all, self._left = found, deque(found)
        # A standby that takes the one that went away for active doesn't lead back to it.
        self._tried = {self._last} if self._last is not None and self._away else set()
        self._last = None


class PinnedResolver(AbstractResolver):
    """Resolves every name to one address, while one is set."""

    def __init__(self) -> None:
        self.address = ""
        self._usual = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The address, or what the system says."""
        if not self.address:
            return await self._usual.resolve(host, port, family)
        kind = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        return [ResolveResult(hostname=host, host=self.address, port=port, family=kind, proto=0,
                              flags=socket.AI_NUMERICHOST)]  # fmt: skip

    async def close(self) -> None:
        """Nothing is kept."""
        await self._usual.close()


async def _addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a name, of the family that the system prefers; [] if it isn't known: the dial says why."""
    try:
        async with asyncio.timeout(LOOK_UP_S):
            found = await pools.NAMES.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return [str(address[0]) for kind, _, _, _, address in found if kind == found[0][0]]

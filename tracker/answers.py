"""Answers about the tracker's state, in JSON, for whoever asks: people, schedulers, members.

A large cluster takes a second of rows. They are made a few milliseconds at a time, so that members are heard between,
and an answer that was dear is kept for a while, so that fifty who ask cost what one does.
"""

import asyncio
import functools
import gzip
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from p2pcache.ids import NodeId, Ref
from p2pcache.io import pools
from p2pcache.io.tasks import Turns
from p2pcache.tracker.last_hour.last_hour import LastHour
from p2pcache.tracker.views import Views

DEAR_S = 0.002  # seconds from which on an answer is kept
DEAR_BYTES = 32 << 10  # and its size: it is packed for browsers
KEEP_S = 1.0
MOST_KEPT = 64  # answers; mostly models that a person looks at
PACKED_BYTES = 1024  # from which on packing saves more than it costs
PACKING = 1  # gzip's level: a sixth is left, in a hundredth of a second per megabyte


@dataclass(slots=True)
class Made:
    """An answer."""

    body: bytes
    until: float = 0.0  # when a new one is made
    _packed: bytes = field(default=b"", repr=False)
    _packing: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def packed(self) -> bytes:
        """The body as gzip has it; packed once, in a thread where it is large."""
        async with self._packing:
            if not self._packed:
                small = len(self.body) < DEAR_BYTES
                pack = functools.partial(gzip.compress, self.body, PACKING)
                self._packed = pack() if small else await pools.WORK.run(pack)
        return self._packed


class Answers:
    """The answers, by name."""

    def __init__(self, views: Views, last_hour: LastHour) -> None:
        """None is kept yet."""
        self._views = views
        self._last_hour = last_hour
        self._turns = Turns()
        self._kept: dict[str, Made] = {}

    async def nodes(self) -> Made:
        """Every member, and those that are gone."""
        return await self.kept("nodes", self._views.nodes)

    async def node(self, node: NodeId) -> Made:
        """One member with its models.

        Raises:
            NotFound: it is no member.
        """
        return await self.kept(f"node {node}", lambda: self._views.node(node))

    async def swarms(self) -> Made:
        """Every swarm."""
        return await self.kept("swarms", self._views.swarms)

    async def swarm(self, digest: str) -> Made:
        """One swarm with its members.

        Raises:
            NotFound: no member has or wants it.
        """
        return await self.kept(f"swarm {digest}", lambda: self._views.swarm(digest))

    async def status(self) -> Made:
        """The tracker at a glance."""
        return await self.kept("status", self._views.status)

    async def last_hour(self, events: int, pulls: int) -> Made:
        """What happened lately: all of the last hour, or little more than what is new.

        Args:
            events: number of the last event that the caller has; 0: none.
            pulls: the same of ended pulls.
        """
        events, pulls = self._last_hour.wanted(events, pulls)

        async def build() -> bytes:
            return self._last_hour.answer(events, pulls)

        return await self.kept(f"last hour {events} {pulls}", build)

    async def locate(self, ref: Ref) -> Made:
        """Which nodes have a model.

        Raises:
            P2PCacheError: the tag can't be looked up.
        """
        digest = await self._views.digest_of(ref)
        return await self.kept(f"locate {ref} {digest}", lambda: self._views.locate(ref, digest))

    async def kept(self, name: str, build: Callable[[], Awaitable[object]]) -> Made:
        """An answer of less than `KEEP_S` ago, or a new one, which those who ask meanwhile share.

        Args:
            name: what tells it from others.
            build: makes what is encoded; bytes are taken as they are.
        """
        async with self._turns.of(name):
            made = self._kept.pop(name, None)
            if made is None or made.until <= time.monotonic():
                began = time.monotonic()
                found = await build()
                made = Made(found if isinstance(found, bytes) else msgspec.json.encode(found))
                if time.monotonic() - began < DEAR_S and len(made.body) < DEAR_BYTES:
                    return made
                made.until = time.monotonic() + KEEP_S
            self._kept[name] = made
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]  # the one not asked for the longest
            return made

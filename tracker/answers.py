"""Answers about the tracker's state, in JSON, for whoever asks: people, schedulers, members.

A large cluster takes a second of rows. They are made a few milliseconds at a time, so that members are heard between,
and an answer that was dear is kept for a while, so that fifty who ask cost what one does.
"""

import time
from collections.abc import Awaitable, Callable

import msgspec

from p2pcache.ids import Ref
from p2pcache.io.tasks import Turns
from p2pcache.tracker.views import Views

DEAR_S = 0.002  # seconds from which on an answer is kept
KEEP_S = 1.0
MOST_KEPT = 64  # answers; mostly models that a person looks at


class Answers:
    """The answers, by name."""

    def __init__(self, views: Views) -> None:
        """None is kept yet."""
        self._views = views
        self._turns = Turns()
        self._kept: dict[str, tuple[float, bytes]] = {}

    async def nodes(self) -> bytes:
        """Every member, and those that are gone."""
        return await self.kept("nodes", self._views.nodes)

    async def swarms(self) -> bytes:
        """Every swarm."""
        return await self.kept("swarms", self._views.swarms)

    async def swarm(self, digest: str) -> bytes:
        """One swarm with its members.

        Raises:
            NotFound: no member has or wants it.
        """
        return await self.kept(f"swarm {digest}", lambda: self._views.swarm(digest))

    async def status(self) -> bytes:
        """The tracker at a glance."""
        return await self.kept("status", self._views.status)

    async def locate(self, ref: Ref) -> bytes:
        """Which nodes have a model.

        Raises:
            P2PCacheError: the tag can't be looked up.
        """
        digest = await self._views.digest_of(ref)
        return await self.kept(f"locate {ref} {digest}", lambda: self._views.locate(ref, digest))

    async def kept(self, name: str, build: Callable[[], Awaitable[object]]) -> bytes:
        """An answer of less than `KEEP_S` ago, or a new one, which those who ask meanwhile share.

        Args:
            name: what tells it from others.
            build: makes what is encoded; bytes are taken as they are.
        """
        async with self._turns.of(name):
            until, body = self._kept.pop(name, (0.0, b""))
            if until <= time.monotonic():
                began = time.monotonic()
                made = await build()
                body = made if isinstance(made, bytes) else msgspec.json.encode(made)
                if time.monotonic() - began < DEAR_S:
                    return body
                until = time.monotonic() + KEEP_S
            self._kept[name] = until, body
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]  # the one not asked for the longest
            return body

"""An agent that works for one command: no tracker, no peers, and nobody else asks it anything.

It has no API, so that it starts in a third of the time of a whole agent.
"""

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from p2pcache.agent.context import AgentContext
from p2pcache.agent.fetching.fetching import Fetching
from p2pcache.agent.jobs.events import Events
from p2pcache.agent.jobs.room import limits_of
from p2pcache.agent.node.origin_opener import OriginOpener
from p2pcache.agent.origin_reads import OriginReads
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.settings import UploadSettings
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.store import Store
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Sources
from p2pcache.io.tasks import Tasks


class _Said:
    """What the opener of storage notes; each pull raises storage's errors itself."""

    origin_trouble: P2PCacheError | None = None
    origin_doubt: P2PCacheError | None = None


class LoneAgent:
    """Pulls from storage into a cache: `async with LoneAgent(...).running():`, then `pull_events`."""

    def __init__(
        self, settings: AgentSettings, sources: dict[str, SourceSettings] | None = None
    ) -> None:
        """Open the cache. Settings that only a swarm needs aren't looked at.

        Args:
            settings: of an agent, without a tracker and with an origin.
            sources: from which referenced models are read, by name.

        Raises:
            P2PCacheError: a setting can't work, or the cache can't be used.
        """
        store = Store.open(Path(settings.cache_dir), min_free_bytes=settings.min_free_bytes)
        store.limits = limits_of(settings, store)
        node, disk = store.node_id, TokenBucket(settings.disk_bytes_per_s)
        net = PeerNet(node=node, secret=Secret(b""), uploads=UploadSettings(), disk=disk)
        origin = OriginReads(settings.origin_bytes_per_s, disk, Sources(sources or {}))
        self._context = AgentContext(
            settings, node, store, net, None, origin, Tasks(), random.Random(node), disk=disk
        )
        self._fetching = Fetching(self._context)
        self._pulls = self._fetching.pulls()
        self._opener = OriginOpener(self._context, self._fetching.resolver, _Said())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start in order, yield, stop in order."""
        context = self._context
        try:
            async with context.tasks:
                context.net.start_alone()
                context.usage = await pools.STEPS.run(context.store.usage)
                await pools.STEPS.run(self._fetching.far_sites.start)
                await self._opener.use(context.settings.origin)
                self._fetching.start()
                try:
                    yield
                finally:
                    self._fetching.on_command_ended()
                await self._fetching.stop()
        finally:
            self._fetching.journal.close()
            context.store.close()

    def pull_events(
        self, ref: Ref, *, force_generation: bool, include: tuple[str, ...], exclude: tuple[str, ...],
        background: bool, hold: str, hold_s: float, hold_pid: int,
    ) -> Events:  # fmt: skip
        """The events of a pull; the options are those of `p2pcache.io.http.client.AgentClient.pull`."""
        events = self._pulls.events(
            ref, force=force_generation, include=list(include), exclude=list(exclude), background=background
        )  # fmt: skip
        if not hold:
            return events
        from p2pcache.io.clock import start_of

        started = start_of(hold_pid) if hold_pid else ""
        return self._fetching.claims.held(events, ref, hold, hold_s, hold_pid, started)

"""What every swarm of an agent shares, passed by constructor."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from p2pcache.agent.announce import TrackerLink
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.events import Outcome
from p2pcache.core.layout import Layout
from p2pcache.io.modelstore import ModelStore
from p2pcache.io.origins.fetch import fetch_run
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.peers.limits import TokenBucket
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.store import Store
from p2pcache.io.tasks import Tasks

ORIGIN_THREADS = 16  # S3 gives about 100 MB/s a connection; leases bound the rest


class OriginReads:
    """Reads leased runs from the origin on threads of its own."""

    def __init__(self, bytes_per_s: int) -> None:
        self.repo: OriginRepo | None = None
        self._limiter = TokenBucket(bytes_per_s) if bytes_per_s else None
        self._threads = ThreadPoolExecutor(ORIGIN_THREADS, thread_name_prefix="origin")

    async def fetch(
        self, layout: Layout, store: ModelStore, run: int, cancelled: threading.Event
    ) -> Outcome:
        """Read, prove and store one run; never raises for what the origin does."""
        repo = self.repo
        if repo is None:
            return Outcome.UNAVAILABLE

        def read() -> Outcome:
            return fetch_run(
                repo, layout, store, run,
                on_bytes=lambda count: None, cancelled=cancelled.is_set, limiter=self._limiter,
            )  # fmt: skip

        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def close(self) -> None:
        """Wait for nothing: reads in flight end with their cancelled flag."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class Parts:
    """The agent's shared parts."""

    settings: AgentSettings
    node: int
    store: Store
    net: PeerNet
    link: TrackerLink | None
    origin: OriginReads
    tasks: Tasks
    rng: random.Random
    now: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())

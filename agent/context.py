"""What the objects of one agent share. It is passed by constructor."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2pcache.agent.origin_reads import OriginReads
from p2pcache.agent.settings import AgentSettings
from p2pcache.agent.told_swarms import ToldSwarms
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.ids import NodeId
from p2pcache.io.disk.store_info import Usage
from p2pcache.io.models.store import Store
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.security.tls import Tls
from p2pcache.io.tasks import Tasks

if TYPE_CHECKING:  # an agent without a tracker does without aiohttp
    from p2pcache.agent.tracker_link import TrackerLink


@dataclass(slots=True)
class Tally:
    """Counts of this process since its start, over all models, removed ones included."""

    taken: Counter[Source] = field(default_factory=Counter)  # proved bytes, by source
    requests: Counter[Outcome] = field(default_factory=Counter)  # to peers, by outcome
    fetches: Counter[Outcome] = field(default_factory=Counter)  # reads of the origin, by outcome


@dataclass(slots=True)
class AgentContext:
    """What the objects of one agent share: its settings, cache, connections and counters."""

    settings: AgentSettings
    node: NodeId
    store: Store
    net: PeerNet
    link: "TrackerLink | None"
    origin: OriginReads
    tasks: Tasks
    rng: random.Random
    tls: Tls | None = None
    disk: TokenBucket = field(default_factory=TokenBucket)  # rate of writes to the cache
    tally: Tally = field(default_factory=Tally)
    # Of the cache, a few seconds old: a fresh one may wait for locks.
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    told: ToldSwarms = field(default_factory=lambda: ToldSwarms(None))
    now: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())

    def sign_of_life(self) -> m.Heartbeat:
        """A heartbeat that says how this node is, and nothing of its swarms."""
        return m.Heartbeat(
            load=self.net.load, free_bytes=self.usage.free_bytes, cached_bytes=self.usage.cached_bytes,
            quota_bytes=self.store.limits.quota_bytes,
        )  # fmt: skip

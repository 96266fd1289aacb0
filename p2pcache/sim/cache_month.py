"""One node's cache over a month: which bytes are fetched again, by what decides which models go.

Models are asked for as a Zipf law says, each gets a new version every week, and a few clients stay with the last one.
The cache holds a part of them. Beside our decider (`core.pool.eviction`): the least recently used goes (LRU), and
GreedyDual-Size (Cao and Irani 1997) with equal costs (1) and with costs that grow with the size (bytes).

Beside it a pool of such nodes, each request at any of them: what storage is read for, if the last copy of a model goes
last, and if it goes as any.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from p2pcache.core.pool.eviction import Candidate, Uses, plan, used
from p2pcache.core.pool.settings import COST_PEER, COST_STORAGE

DAY_S = 86400.0


@dataclass(frozen=True)
class Month:
    """What is simulated."""

    models: int = 200
    requests: int = 6000
    days: float = 30.0
    zipf: float = 0.9  # exponent: how much more the popular ones are asked for
    last_version: float = 0.1  # share of clients that stay with the version before
    share: float = 0.2  # the cache's capacity, of the bytes of all current versions
    seed: int = 1


class Request(NamedTuple):
    """Somebody needs a version of a model."""

    at: float
    key: str
    size_bytes: int


class Cache(Protocol):
    """What decides which models go."""

    def request(self, request: Request) -> int:
        """Bytes of the model that weren't there; they are now."""


def requests(month: Month) -> Iterator[Request]:
    """The requests of a month, by time."""
    dice = random.Random(month.seed)
    sizes = [int(dice.lognormvariate(3.2, 0.9) * 1e9) for _ in range(month.models)]
    weights = [1 / (rank + 1) ** month.zipf for rank in range(month.models)]
    births = [dice.uniform(0, 7) for _ in range(month.models)]  # weekday of its versions
    times = sorted(dice.uniform(0, month.days) for _ in range(month.requests))
    for day, number in zip(
        times, dice.choices(range(month.models), weights, k=month.requests), strict=True
    ):
        version = int((day + births[number]) // 7)
        if version and dice.random() < month.last_version:
            version -= 1
        yield Request(day * DAY_S, f"{number}:{version}", sizes[number])


def capacity(month: Month) -> int:
    """Bytes of the cache."""
    dice = random.Random(month.seed)
    return int(month.share * sum(dice.lognormvariate(3.2, 0.9) * 1e9 for _ in range(month.models)))


Others = Callable[["Ours", str], bool]


class Ours:
    """The decider of a node."""

    def __init__(self, capacity_bytes: int, others: Others | None = None) -> None:
        """An empty cache. `others`: whether another node has all of a model; None: there are none."""
        self._capacity = capacity_bytes
        self._others = others
        self._sizes: dict[str, int] = {}
        self._whole: set[str] = set()
        self._uses: dict[str, Uses] = {}
        self._level = 0.0
        self._filled = 0

    def has(self, key: str) -> bool:
        """Whether all of a model is here."""
        return key in self._whole

    def request(self, request: Request) -> int:
        """See `Cache`."""
        missing = request.size_bytes - self._sizes.get(request.key, 0)
        if missing:
            self._make_room(missing, request)
            self._sizes[request.key] = request.size_bytes
            self._whole.add(request.key)
            self._filled += missing
        before = self._uses.get(request.key, Uses())
        self._uses[request.key] = used(before, self._level, request.at)
        return missing

    def _make_room(self, size_bytes: int, comes: Request) -> None:
        over = self._filled + size_bytes - self._capacity
        if over <= 0:
            return
        models = [
            self._candidate(key, size) for key, size in self._sizes.items() if key != comes.key
        ]
        for victim in plan(models, over, now=comes.at).victims:
            self._filled -= victim.bytes_freed
            self._whole.discard(victim.digest)
            if victim.bytes_left:
                self._sizes[victim.digest] = victim.bytes_left
            else:
                del self._sizes[victim.digest]
                self._level = max(self._level, victim.value)

    def _candidate(self, key: str, size: int) -> Candidate:
        if self._others is None:
            return Candidate(key, {key: size}, self._uses[key], COST_STORAGE)
        there = self._others(self, key)
        cost = COST_PEER if there else COST_STORAGE
        return Candidate(key, {key: size}, self._uses[key], cost, last_copy=not there)


class Lru:
    """The least recently used goes."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._filled = 0

    def request(self, request: Request) -> int:
        """See `Cache`."""
        if request.key in self._sizes:
            self._sizes.move_to_end(request.key)
            return 0
        while self._sizes and self._filled + request.size_bytes > self._capacity:
            self._filled -= self._sizes.popitem(last=False)[1]
        self._sizes[request.key] = request.size_bytes
        self._filled += request.size_bytes
        return request.size_bytes


class GreedyDualSize:
    """The least of level + cost / size goes."""

    def __init__(self, capacity_bytes: int, *, by_bytes: bool) -> None:
        self._capacity = capacity_bytes
        self._by_bytes = by_bytes
        self._sizes: dict[str, int] = {}
        self._values: dict[str, float] = {}
        self._level = 0.0
        self._filled = 0

    def request(self, request: Request) -> int:
        """See `Cache`."""
        had = request.key in self._sizes
        if not had:
            while self._sizes and self._filled + request.size_bytes > self._capacity:
                gone = min(self._values, key=lambda key: self._values[key])
                self._level = self._values.pop(gone)
                self._filled -= self._sizes.pop(gone)
            self._sizes[request.key] = request.size_bytes
            self._filled += request.size_bytes
        worth = 1.0 if self._by_bytes else 1e9 / request.size_bytes
        self._values.pop(request.key, None)  # of equals the one used longest ago goes
        self._values[request.key] = self._level + worth
        return 0 if had else request.size_bytes


class Figures(NamedTuple):
    """How one cache did."""

    hits: float  # share of requests
    again_bytes: int  # fetched though they had been fetched before


def play(month: Month, cache: Cache) -> Figures:
    """One month of one cache."""
    seen: set[str] = set()
    hits = again = 0
    for request in requests(month):
        missing = cache.request(request)
        if not missing:
            hits += 1
        elif request.key in seen:
            again += missing
        seen.add(request.key)
    return Figures(hits / month.requests, again)


def compare(month: Month) -> dict[str, Figures]:
    """The month by every decider."""
    room = capacity(month)
    caches: dict[str, Cache] = {
        "ours": Ours(room),
        "LRU": Lru(room),
        "GreedyDual-Size(1)": GreedyDualSize(room, by_bytes=False),
        "GreedyDual-Size(bytes)": GreedyDualSize(room, by_bytes=True),
    }
    return {name: play(month, cache) for name, cache in caches.items()}


class PoolFigures(NamedTuple):
    """How a pool of caches did."""

    hits: float  # share of requests that found all of the model on their node
    storage_bytes: int  # read again, though some node had them before
    peer_bytes: int


def play_pool(month: Month, nodes: int, *, last_goes_last: bool) -> PoolFigures:
    """One month of several nodes, which together have the month's share of the models."""

    def others(asking: Ours, key: str) -> bool:
        return any(cache.has(key) for cache in caches if cache is not asking)

    class Forgetful(Ours):
        def _candidate(self, key: str, size: int) -> Candidate:
            return super()._candidate(key, size)._replace(last_copy=False)

    kind = Ours if last_goes_last else Forgetful
    caches = [kind(capacity(month) // nodes, others) for _ in range(nodes)]
    dice, seen = random.Random(month.seed), set[str]()
    hits = storage = peers = 0
    for request in requests(month):
        node = dice.choice(caches)
        there = others(node, request.key)
        missing = node.request(request)
        if not missing:
            hits += 1
        elif there:
            peers += missing
        elif request.key in seen:
            storage += missing
        seen.add(request.key)
    return PoolFigures(hits / month.requests, storage, peers)


def pool_lines(month: Month, nodes: int) -> Iterator[str]:
    """The pool's month as a table."""
    yield f"{f'{nodes} nodes':24} {'hits':>7} {'storage':>10} {'peers':>10}"
    for name, rule in (("the last copy goes last", True), ("as any", False)):
        found = play_pool(month, nodes, last_goes_last=rule)
        storage, peers = found.storage_bytes / 1e12, found.peer_bytes / 1e12
        yield f"{name:24} {found.hits:7.1%} {storage:7.2f} TB {peers:7.2f} TB"


def lines(month: Month) -> Iterator[str]:
    """The comparison as a table."""
    found = compare(month)
    ours = found["ours"].again_bytes
    yield f"{'':24} {'hits':>7} {'again':>10} {'ours / it':>10}"
    for name, figures in found.items():
        beside = ours / figures.again_bytes if figures.again_bytes else 0.0
        yield f"{name:24} {figures.hits:7.1%} {figures.again_bytes / 1e12:7.2f} TB {beside:10.3f}"

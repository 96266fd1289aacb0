"""One node's cache over a month: which bytes are fetched again, by what decides which models go.

Models are asked for as a Zipf law says, each gets a new version every week, and a few clients stay with the last one.
The cache holds a part of them. Beside our decider (`core.pool.eviction`): the least recently used goes (LRU), and
GreedyDual-Size (Cao and Irani 1997) with equal costs (1) and with costs that grow with the size (bytes).
"""

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from p2pcache.core.pool.eviction import Candidate, Uses, plan, used
from p2pcache.core.pool.settings import COST_STORAGE

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

    def request(self, request: Request) -> bool:
        """Whether the model was there; it is now."""


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


class Ours:
    """The decider of a node."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._sizes: dict[str, int] = {}
        self._uses: dict[str, Uses] = {}
        self._level = 0.0
        self._filled = 0

    def request(self, request: Request) -> bool:
        """See `Cache`."""
        had = request.key in self._sizes
        if not had:
            self._make_room(request.size_bytes)
            self._sizes[request.key] = request.size_bytes
            self._filled += request.size_bytes
        before = self._uses.get(request.key, Uses())
        self._uses[request.key] = used(before, self._level, request.at)
        return had

    def _make_room(self, size_bytes: int) -> None:
        over = self._filled + size_bytes - self._capacity
        if over <= 0:
            return
        models = [
            Candidate(key, {key: size}, self._uses[key], COST_STORAGE)
            for key, size in self._sizes.items()
        ]
        for victim in plan(models, over).victims:
            self._filled -= self._sizes.pop(victim.digest)
            self._level = max(self._level, victim.value)


class Lru:
    """The least recently used goes."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._filled = 0

    def request(self, request: Request) -> bool:
        """See `Cache`."""
        had = request.key in self._sizes
        if had:
            self._sizes.move_to_end(request.key)
            return True
        while self._sizes and self._filled + request.size_bytes > self._capacity:
            self._filled -= self._sizes.popitem(last=False)[1]
        self._sizes[request.key] = request.size_bytes
        self._filled += request.size_bytes
        return False


class GreedyDualSize:
    """The least of level + cost / size goes."""

    def __init__(self, capacity_bytes: int, *, by_bytes: bool) -> None:
        self._capacity = capacity_bytes
        self._by_bytes = by_bytes
        self._sizes: dict[str, int] = {}
        self._values: dict[str, float] = {}
        self._level = 0.0
        self._filled = 0

    def request(self, request: Request) -> bool:
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
        return had


class Figures(NamedTuple):
    """How one cache did."""

    hits: float  # share of requests
    again_bytes: int  # fetched though they had been fetched before


def play(month: Month, cache: Cache) -> Figures:
    """One month of one cache."""
    seen: set[str] = set()
    hits = again = 0
    for request in requests(month):
        if cache.request(request):
            hits += 1
        elif request.key in seen:
            again += request.size_bytes
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


def lines(month: Month) -> Iterator[str]:
    """The comparison as a table."""
    found = compare(month)
    ours = found["ours"].again_bytes
    yield f"{'':24} {'hits':>7} {'again':>10} {'ours / it':>10}"
    for name, figures in found.items():
        beside = ours / figures.again_bytes if figures.again_bytes else 0.0
        yield f"{name:24} {figures.hits:7.1%} {figures.again_bytes / 1e12:7.2f} TB {beside:10.3f}"

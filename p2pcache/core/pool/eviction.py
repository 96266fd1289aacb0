"""Which models leave a node's disk when it needs room: the least valuable first.

GreedyDual-Size-Frequency (Cherkasova 1998; GreedyDual-Size by Cao and Irani 1997). A model's value is the cache's
level at its last use, plus its uses times the cost of a byte of it from where it would come again. The level is the
highest value that was ever evicted, so a model that nobody uses falls behind by itself. A large model costs more to
fetch again, and gives more room: what matters is bytes fetched again, so its size cancels out.

The last copy in the pool goes last. The last model that goes gives only what is needed of it: the rest stays, is served
to others, and needn't come again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.pool.settings import HALF_LIFE_S, LAST_COPY_S, ONE_USE_S, PART_BYTES
from p2pcache.ids import RunSet


class Uses(NamedTuple):
    """What is remembered of the uses of one model."""

    times: float = 0.0  # older ones count less
    level: float = 0.0  # the cache's at the last use
    last: float = 0.0  # unix seconds

    def value(self, cost: float) -> float:
        """The value of the model. `cost`: of a byte of it, when it is fetched again."""
        return self.level + max(1.0, self.times) * cost


def used(before: Uses, level: float, now: float) -> Uses:
    """The uses after one more.

    Args:
        before: until now.
        level: the cache's.
        now: unix seconds.
    """
    passed = max(0.0, now - before.last)
    if before.times and passed < ONE_USE_S:
        return Uses(before.times, level, now)
    return Uses(1.0 + before.times * 0.5 ** (passed / HALF_LIFE_S), level, now)


class Candidate(NamedTuple):
    """One model of the cache."""

    digest: str
    # Bytes of disk of each of its blobs that other models need, too; those of the rest together, under its own digest.
    blobs: Mapping[str, int]
    uses: Uses
    cost: float  # of a byte of it, when it is fetched again
    kept: str = ""  # why it must not go, for people; "": it may
    ordered_bytes: int = 0  # beside those of `blobs`: they stay even if it goes
    last_copy: bool = False  # no other node is known to have all of it that is here

    @property
    def value(self) -> float:
        """What it is worth to have it here."""
        return self.uses.value(self.cost)


class Victim(NamedTuple):
    """A model that goes."""

    digest: str
    bytes_freed: int
    value: float
    bytes_left: int = 0  # of it stay: more isn't needed


class Plan(NamedTuple):
    """Which models go, in this order."""

    victims: list[Victim]
    bytes_freed: int

    @property
    def level(self) -> float:
        """The cache's level after it, as far as it is raised."""
        return max((victim.value for victim in self.victims), default=0.0)


def plan(
    models: Sequence[Candidate], needed_bytes: int, wanted_bytes: int = 0, *, now: float = 0.0
) -> Plan:
    """Choose the models that make room.

    Args:
        models: all of the cache.
        needed_bytes: must be freed; if that can't be, nothing goes.
        wanted_bytes: should be freed.
        now: unix seconds.
    """
    wanted_bytes = max(needed_bytes, wanted_bytes)
    owners = Counter(blob for model in models for blob in model.blobs)

    def goes(model: Candidate) -> tuple[bool, float, float, str]:
        last = model.last_copy and now - model.uses.last < LAST_COPY_S
        return last, model.value, model.uses.last, model.digest  # ties in the order of last use

    waiting = sorted((model for model in models if not model.kept), key=goes)
    gone: list[tuple[Candidate, int]] = []
    freed = 0
    for model in waiting:
        if freed >= wanted_bytes:
            break
        owners.subtract(model.blobs.keys())
        # 0 where others need all of it; then it gives room only together with them.
        own = sum(size for blob, size in model.blobs.items() if not owners[blob])
        gone.append((model, own))
        freed += own
    if freed < needed_bytes:
        return Plan([], 0)
    victims = []
    for model, own in reversed(gone):  # the most valuable first: they stay where that costs no room
        if own or any(size and not owners[blob] for blob, size in model.blobs.items()):
            victims.append(Victim(model.digest, own, model.value))
        else:
            owners.update(model.blobs.keys())
    victims.reverse()
    surplus = freed - wanted_bytes
    if victims and PART_BYTES <= surplus < victims[-1].bytes_freed:
        digest, own, value, _ = victims[-1]
        victims[-1] = Victim(digest, own - surplus, value, surplus)
        freed = wanted_bytes
    return Plan(victims, freed)


def runs_to_go(
    run_bytes: Sequence[int], may_go: RunSet, elsewhere: RunSet, size_bytes: int
) -> RunSet:
    """The runs of a model that go when a part of it goes: what others have first, and its end before its beginning.

    Args:
        run_bytes: of each run.
        may_go: runs that are here, and not ordered to be.
        elsewhere: runs that another node is known to have.
        size_bytes: of room that they must give.
    """
    chosen: RunSet = 0
    for some in (may_go & elsewhere, may_go & ~elsewhere):
        for run in reversed(list(bitset.members(some))):
            if size_bytes <= 0:
                return chosen
            chosen |= 1 << run
            size_bytes -= run_bytes[run]
    return chosen


class Limits(NamedTuple):
    """How full a cache may be. 0: no limit."""

    quota_bytes: int = 0
    high: float = 0.8  # share of the quota above which models go
    low: float = 0.7  # until this share is left

    def due_bytes(self, used_bytes: int) -> int:
        """Bytes to free because the cache is above its high mark."""
        if not self.quota_bytes or used_bytes <= self.high * self.quota_bytes:
            return 0
        return self.excess_bytes(used_bytes)

    def excess_bytes(self, used_bytes: int) -> int:
        """Bytes above the low mark."""
        return max(0, used_bytes - int(self.low * self.quota_bytes))

    def may_go_on(self, coming_bytes: int) -> bool:
        """Whether more goes for a model that comes than it needs, down to the low mark: it fits below that."""
        return 0 < coming_bytes <= self.low * self.quota_bytes

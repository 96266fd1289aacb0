"""Which models of a cache would go to make room, after a look at who uses them. Nothing is removed here."""

from collections.abc import Mapping
from typing import NamedTuple

from p2pcache.core.pool.eviction import Plan, plan
from p2pcache.io.models.store import Store


class Wanted(NamedTuple):
    """Who wants room, and how much."""

    needed_bytes: int  # without them nothing goes
    wanted_bytes: int = 0  # as many as can be had of them
    costs: Mapping[str, float] = {}  # of a byte that is fetched again, by digest; others cost what storage does
    kept: Mapping[str, str] = {}  # why models must not go, by digest


class Choice(NamedTuple):
    """What would go."""

    plan: Plan
    kept: dict[str, str]  # why models must not go, by digest, as far as that was looked at
    unsure: str  # why other processes may use what goes all the same, for people


def choose(store: Store, wanted: Wanted) -> Choice:
    """Choose the models that make room. Those that a process has open or mapped stay. It blocks."""
    kept, seen, unsure = dict(wanted.kept), set[str](), ""
    while True:
        found = plan(store.candidates(wanted.costs, kept), wanted.needed_bytes, wanted.wanted_bytes)
        fresh = [victim.digest for victim in found.victims if victim.digest not in seen]
        if not fresh:
            return Choice(found, kept, unsure)
        users = store.users_of(fresh)
        seen.update(fresh)
        kept |= {digest: f"in use by {who}" for digest, who in users.held.items()}
        unsure = users.unsure or unsure

"""Which models of a cache would go to make room, after a look at who uses them. Nothing is removed here."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from p2pcache.core.pool.eviction import Candidate, Plan, Victim, plan
from p2pcache.core.pool.settings import COST_PEER, COST_STORAGE
from p2pcache.core.units import counted, format_duration
from p2pcache.ids import Ref
from p2pcache.io.disk.claims import Claim
from p2pcache.io.disk.disk import disk_bytes
from p2pcache.io.disk.store_info import ModelInfo
from p2pcache.io.models.model_users import Users
from p2pcache.io.models.store import Store

LEAST_SURPLUS = 1 << 20  # bytes beside ordered parts for which a published model isn't taken apart


class Wanted(NamedTuple):
    """Who wants room, and how much."""

    needed_bytes: int  # without them nothing goes
    wanted_bytes: int = 0  # as many as can be had of them
    costs: Mapping[
        str, float
    ] = {}  # of a byte that is fetched again, by digest; others cost what storage does
    kept: Mapping[str, str] = {}  # why models must not go, by digest
    last_copies: Collection[str] = ()  # digests of models that no other node is known to have
    rehearsal: bool = False  # look at all models: people ask what may go


class Choice(NamedTuple):
    """What would go."""

    plan: Plan
    kept: dict[str, str]  # why models must not go, by digest, as far as that was looked at
    unsure: str  # why other processes may use what goes all the same, for people


def claimed(store: Store, now: float, *, ordered: bool = True) -> dict[str, str]:
    """Why models are pinned or held, for people, by digest. A tag pins what it names here.

    Args:
        store: of the cache.
        now: unix seconds.
        ordered: also those of which the cluster keeps something here.
    """
    found: dict[str, list[str]] = {}
    for claim, digest in _claims(store, now):
        found.setdefault(digest, []).append(claim.reason)
    for digest, reason in store.orders.reasons.items() if ordered else ():
        found.setdefault(digest, []).append(reason)
    return {digest: ", ".join(reasons) for digest, reasons in found.items()}


def _staying(store: Store, models: Collection[Candidate], now: float) -> dict[str, str]:
    """As `claimed`, without models that have so much beside what is ordered that making holes pays."""
    found = claimed(store, now, ordered=False)
    for model in models:
        if model.digest in store.orders.reasons and sum(model.blobs.values()) < LEAST_SURPLUS:
            found.setdefault(model.digest, store.orders.reasons[model.digest])
    return found


def standing(store: Store, digest: str, now: float) -> list[dict[str, object]]:
    """Why a model is here, as one row in the form of docs/api.md; none: it isn't known. `now`: unix seconds."""
    known = store.model_info(digest)
    if known is None:
        return []
    kinds = {claim.kind for claim, held in _claims(store, now) if held == digest}
    return [{
        "kept": known.kept, "pinned": "pin" in kinds, "held": "hold" in kinds, "last_used": known.last_used,
    }]  # fmt: skip


def _claims(store: Store, now: float) -> Iterator[tuple[Claim, str]]:
    """The pins and holds that last, with the digests of their models."""
    for claim in store.claims.all_claims():
        digest = claim.digest or store.named(Ref.parse(claim.ref))
        if digest and claim.lasts(now):
            yield claim, digest


def users_and_claims(store: Store, digests: Collection[str], now: float) -> Users:
    """Who uses models, or pins or holds them, as `Store.users_of`. It blocks."""
    users = store.users_of(digests)
    claims = claimed(store, now)
    held = {digest: f"in use by {who}" for digest, who in users.held.items()}
    return Users({**held, **{d: claims[d] for d in digests if d in claims}}, users.unsure)


def choose(store: Store, wanted: Wanted, now: float) -> Choice:
    """Choose the models that make room. Those that are pinned, held, open or mapped stay. It blocks.

    Args:
        store: of the cache.
        wanted: how much, and what must stay besides.
        now: unix seconds.
    """
    models = store.candidates(wanted.costs)
    kept, seen, unsure = {**_staying(store, models, now), **wanted.kept}, set[str](), ""
    fresh = [model.digest for model in models] if wanted.rehearsal else []
    while True:
        if fresh:
            users = store.users_of(fresh)
            seen.update(fresh)
            kept = {digest: f"in use by {who}" for digest, who in users.held.items()} | kept
            unsure = users.unsure or unsure
        may = [
            m._replace(kept=kept.get(m.digest, ""), last_copy=m.digest in wanted.last_copies)
            for m in models
        ]
        found = plan(may, wanted.needed_bytes, wanted.wanted_bytes, now=now)
        fresh = [victim.digest for victim in found.victims if victim.digest not in seen]
        if not fresh:
            return Choice(found, kept, unsure)


def only(store: Store, digest: str, wanted: Wanted, now: float) -> Choice:
    """One model goes, whatever it is worth, unless somebody uses or claims it. It blocks."""
    models = store.candidates(wanted.costs)
    wanted = wanted._replace(kept={**_staying(store, models, now), **wanted.kept})
    users = store.users_of([digest])
    why = wanted.kept.get(digest) or (f"in use by {who}" if (who := users.held.get(digest)) else "")
    if why:
        return Choice(Plan([], 0), {digest: why}, users.unsure)
    others = [m._replace(kept="" if m.digest == digest else "another") for m in models]
    freed = plan(others, 0, sum(map(sum, (model.blobs.values() for model in others)))).bytes_freed
    value = next((model.value for model in models if model.digest == digest), 0.0)
    return Choice(Plan([Victim(digest, freed, value)], freed), {}, users.unsure)


def state(store: Store, kept: Mapping[str, str], now: float) -> dict[str, object]:
    """How full a cache is, in the form of docs/api.md. It blocks.

    Args:
        store: of the cache.
        kept: why models must not go, by digest, besides pins and holds.
        now: unix seconds.
    """
    usage, capacity = store.usage(), disk_bytes(store.root)
    models = store.candidates({})
    stays = {**_staying(store, models, now), **kept}
    kept_bytes = sum(model.ordered_bytes for model in models)
    held: dict[str, int] = {}
    for model in models:
        if model.digest in stays:
            held.update(model.blobs)
    every = {blob: size for model in models for blob, size in model.blobs.items()}
    held_bytes = sum(held.values())
    return {
        "capacity_bytes": capacity, "limit_bytes": store.limits.quota_bytes or capacity,
        "quota_bytes": store.limits.quota_bytes, "used_bytes": usage.filled_bytes,
        "free_bytes": usage.free_bytes, "held_bytes": held_bytes,
        "kept_bytes": kept_bytes, "evictable_bytes": sum(every.values()) - held_bytes, "models": len(models),
    }  # fmt: skip


def for_parts(store: Store, kept: Mapping[str, str], now: float) -> int:
    """Bytes that parts which are ordered here may take, those that are here already included. It blocks.

    The arguments are those of `state`. Without a quota nothing is evicted for them.
    """
    usage, limits = store.usage(), store.limits
    for kept_model in store.orders.all_kept():  # only of open ones is known how much is here
        store.get(kept_model.digest)
    models = store.candidates({})
    free = max(0, usage.free_bytes - usage.promised_bytes - store.min_free_bytes)
    here = sum(model.ordered_bytes for model in models)
    if not limits.quota_bytes:
        return free + here
    stays = {**_staying(store, models, now), **kept}
    used = {blob: size for model in models for blob, size in model.blobs.items()}
    held = {
        blob: size for model in models if model.digest in stays for blob, size in model.blobs.items()
    }  # fmt: skip
    evictable = sum(used.values()) - sum(held.values())
    return max(
        0, min(int(limits.high * limits.quota_bytes) - sum(held.values()), free + evictable + here)
    )


def told(
    choice: Choice, models: Mapping[str, ModelInfo], costs: Mapping[str, float], now: float
) -> dict[str, object]:
    """A choice in the form of docs/api.md: what goes, and what stays although it is worth less or was asked for.

    Args:
        choice: what would go.
        models: of the cache, by digest.
        costs: as in `Wanted`.
        now: unix seconds.
    """

    def named(digest: str) -> dict[str, object]:
        known = models.get(digest)
        names = known.written_names if known else []
        ref = names[0] if names else f"@blake3:{digest}"
        return {"ref": ref, "digest": digest}

    def why(digest: str) -> str:
        known = models.get(digest)
        peer = costs.get(digest, COST_STORAGE) <= COST_PEER
        used = (
            f"used {format_duration(max(0.0, now - known.last_used))} ago" if known else "unknown"
        )
        uses = f", {counted(max(1, round(known.uses)), 'time')} lately" if known else ""
        return f"{used}{uses}; it would come again from {'another node' if peer else 'storage'}"

    return {
        "evicted": [
            {**named(v.digest), "bytes": v.bytes_freed, "bytes_left": v.bytes_left, "value": round(v.value, 3),
             "why": why(v.digest)}
            for v in choice.plan.victims
        ],
        "kept": [{**named(d), "why": reason} for d, reason in choice.kept.items() if d in models],
        "unsure": choice.unsure,
    }  # fmt: skip

"""What the tracker is told of the models that it orders here to be kept."""

from collections import Counter
from collections.abc import Iterable

from p2pcache.agent.context import AgentContext
from p2pcache.core import bitset
from p2pcache.core.pool.kept_models import KeptModel
from p2pcache.core.protocol.keep_orders import (
    FAILED,
    MAX_KEPT,
    NO_MANIFEST,
    NO_SPACE,
    NOT_ALLOWED,
    QUOTA,
    REPORT_S,
    Kept,
    KeptReport,
    detail_of,
)
from p2pcache.errors import NoSpace, NotAllowed, NotFound, P2PCacheError
from p2pcache.io.models.model_chunks import ModelStore

PASSING = "passing"  # trouble that ends by itself: no refusal


def refusal_of(error: P2PCacheError, quota_bytes: int) -> str:
    """The word of the protocol for why a model isn't kept; `PASSING` while there is hope."""
    if isinstance(error, NoSpace):
        return QUOTA if quota_bytes and "cache_quota" in str(error) else NO_SPACE
    if isinstance(error, NotFound):
        return NO_MANIFEST
    if isinstance(error, NotAllowed):
        return NOT_ALLOWED
    return PASSING if error.retryable else FAILED


class KeptRows:
    """One row for each ordered model; those that changed are sent."""

    def __init__(self, context: AgentContext) -> None:
        """Nothing is known."""
        self._context = context
        self._generation: int | None = None  # of the last list; None: none has come since the start
        self._rows: dict[str, Kept] = {}
        self._told: dict[str, Kept] = {}
        self._trouble: dict[str, tuple[str, str]] = {}
        self._fetched: Counter[str] = Counter()  # bytes, by digest
        self._sent_at = float("-inf")

    def on_new_list(self, generation: int) -> None:
        """A new list has come: all of its rows are told again."""
        self._generation = generation
        self._told.clear()
        self._sent_at = float("-inf")

    @property
    def refused(self) -> int:
        """Models that can't be kept here now."""
        return sum(code != PASSING for code, _ in self._trouble.values())

    def note(self, kept: KeptModel, model: ModelStore) -> None:
        """How much of a model is here."""
        ordered = kept.ordered & bitset.full(model.layout.run_count)
        had = (ordered & model.have_runs()).bit_count()
        self._rows[kept.digest] = self._with_trouble(kept.digest, had, ordered.bit_count())

    def refuse(self, kept: KeptModel, code: str, detail: str) -> bool:
        """A model can't be kept now; returns whether that is news."""
        detail = detail_of(detail)
        news = self._trouble.get(kept.digest) != (code, detail)
        self._trouble[kept.digest] = code, detail
        known = self._rows.get(kept.digest)
        had, wanted = (known.runs_had, known.runs_ordered) if known else (0, _least(kept))
        self._rows[kept.digest] = self._with_trouble(kept.digest, had, wanted)
        return news

    def on_fetched(self, digest: str, size_bytes: int) -> None:
        """So much of a model was fetched for its orders."""
        self._fetched[digest] += size_bytes

    def forgive(self, digest: str) -> None:
        """A model's trouble is over."""
        self._trouble.pop(digest, None)

    def _with_trouble(self, digest: str, had: int, wanted: int) -> Kept:
        code, detail = self._trouble.get(digest, ("", ""))
        fetched = self._fetched[digest]
        return Kept(digest, had, wanted, "" if code == PASSING else code, detail, fetched)

    def tell_changes(self, models: Iterable[KeptModel]) -> None:
        """Send the rows that changed, if it is time."""
        link, now = self._context.link, self._context.now()
        ordered = {kept.digest: kept for kept in models if kept.ordered}
        for gone in self._rows.keys() - ordered.keys():
            del self._rows[gone]
            self._trouble.pop(gone, None)
            self._told.pop(gone, None)
            self._fetched.pop(gone, None)
        if self._generation is None or link is None or not link.connected:
            return
        for digest, kept in ordered.items():
            self._rows.setdefault(digest, Kept(digest, 0, _least(kept)))
        fresh = [row for digest, row in self._rows.items() if self._told.get(digest) != row][
            :MAX_KEPT
        ]
        if fresh and now >= self._sent_at + REPORT_S:
            link.send(KeptReport(self._generation, tuple(fresh)))
            self._told.update((row.manifest_digest, row) for row in fresh)
            self._sent_at = now


def _least(kept: KeptModel) -> int:
    """Runs that are ordered of a model that isn't open: at least one."""
    return 1 if kept.whole else max(1, kept.ordered.bit_count())

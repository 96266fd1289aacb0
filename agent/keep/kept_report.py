"""What the tracker is told of the models that it orders here to be kept."""

from collections import Counter
from collections.abc import Iterable

from p2pcache.agent.context import AgentContext
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
        """No list has come since the start."""
        self._context = context
        self._has_list = False
        self._told: dict[str, Kept] = {}
        self._trouble: dict[str, tuple[str, str]] = {}
        self._fetched: Counter[str] = Counter()  # bytes, by digest
        self._sent_at = float("-inf")

    def on_new_list(self) -> None:
        """A new list has come: all of its rows are told again."""
        self._has_list = True
        self._told.clear()
        self._sent_at = float("-inf")

    @property
    def refused(self) -> int:
        """Models that can't be kept here now."""
        return sum(code != PASSING for code, _ in self._trouble.values())

    def refuse(self, digest: str, code: str, detail: str) -> bool:
        """A model can't be kept now; returns whether that is news."""
        detail = detail_of(detail)
        news = self._trouble.get(digest) != (code, detail)
        self._trouble[digest] = code, detail
        return news

    def on_fetched(self, digest: str, size_bytes: int) -> None:
        """So much of a model was fetched for its orders."""
        self._fetched[digest] += size_bytes

    def forgive(self, digest: str) -> None:
        """A model's trouble is over."""
        self._trouble.pop(digest, None)

    def _row(self, digest: str) -> Kept:
        code, detail = self._trouble.get(digest, ("", ""))
        return Kept(digest, "" if code == PASSING else code, detail, self._fetched[digest])

    def tell_changes(self, models: Iterable[KeptModel]) -> None:
        """Send the rows that changed, if it is time."""
        link, now = self._context.link, self._context.now()
        rows = {kept.digest: self._row(kept.digest) for kept in models if kept.ordered}
        for known in (self._told, self._trouble, self._fetched):
            for gone in known.keys() - rows.keys():
                del known[gone]
        if not self._has_list or link is None or not link.connected:
            return
        fresh = [row for digest, row in rows.items() if self._told.get(digest) != row][:MAX_KEPT]
        if fresh and now >= self._sent_at + REPORT_S:
            link.send(KeptReport(tuple(fresh)))
            self._told.update((row.manifest_digest, row) for row in fresh)
            self._sent_at = now

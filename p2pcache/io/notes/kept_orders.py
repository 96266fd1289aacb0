"""What this node is ordered to keep, in the cache dir: it holds without a tracker, too, and after a restart."""

import logging
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from p2pcache.core.pool.kept_models import KeptModel, take
from p2pcache.core.protocol.keep_orders import KeepOrder
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, RunSet
from p2pcache.io.notes.json_note import read_page, write_page

log = logging.getLogger(__name__)

FILE = "kept.json"
FORMAT = 1
REASON = "the cluster keeps it here (`p2pcache keep REF --off` ends that)"


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    ref: str
    ordered: str  # hex of the run set
    whole: bool
    brought: bool
    leaving: str
    shown_at: float


class _Page(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    models: list[_Row]


class KeptOrders:
    """The models that are ordered here, by digest. Thread-safe; changes block for disk."""

    def __init__(self, path: Path) -> None:
        """Read the note of an earlier process."""
        self.unwritten = False  # the disk refused the last list
        self._path = path
        self._lock = threading.Lock()
        page = read_page(path, _Page)
        self._models: dict[str, KeptModel] = {}
        for row in page.models if page and page.format == FORMAT else ():
            try:
                known = KeptModel(
                    Ref.parse(row.ref), int(row.ordered, 16), row.whole, row.brought, int(row.leaving, 16),
                    row.shown_at,
                )  # fmt: skip
            except (UsageError, ValueError) as error:
                log.warning("ignoring %r in %s: %s", row.ref, path, error)
                continue
            self._models[known.digest] = known

    def all_kept(self) -> list[KeptModel]:
        """All, also those that are ordered no more and of which something is left to go."""
        return list(self._models.values())

    def kept_of(self, digest: str) -> KeptModel | None:
        """One of them."""
        return self._models.get(digest)

    def runs(self, digest: str) -> RunSet:
        """The runs of a model that are ordered here; `ALL` for a whole one, 0 for none."""
        known = self._models.get(digest)
        return known.ordered if known is not None else 0

    def shown(self, digest: str) -> tuple[str, Ref | None]:
        """Is it a "part" that is ordered, or the "whole", or ""; and what the order calls it, or called it."""
        known = self._models.get(digest)
        if known is None:
            return "", None
        kind = "" if not known.ordered else "whole" if known.whole else "part"
        return kind, known.ref._replace(digest=None)

    def named(self, ref: Ref) -> str | None:
        """The digest that a tag means in the orders, or meant in those of which something is left."""
        found = [k for k in self._models.values() if k.ref.tag_key == ref.tag_key]
        return next((k.digest for k in sorted(found, key=lambda k: not k.ordered)), None)

    @property
    def reasons(self) -> dict[str, str]:
        """Why models must not be removed, for people, by digest."""
        return {d: REASON for d, known in self._models.items() if known.ordered}

    def replace(self, orders: Iterable[KeepOrder], present: Collection[str]) -> None:
        """Take a new list. `present`: digests of the models that have bytes here."""
        with self._lock:
            self._models = take(self._models, orders, present)
            self._write()

    def change(self, known: KeptModel) -> None:
        """Note that something of a model went, or that it was shown. One that was replaced meanwhile stays so."""
        with self._lock:
            now = self._models.get(known.digest)
            if now is None or now.ordered != known.ordered:
                return
            if known.ordered or known.leaving:
                self._models[known.digest] = known
            else:
                del self._models[known.digest]
            self._write()

    def write_again(self) -> None:
        """Write what the disk refused."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        rows = [
            _Row(str(k.ref), format(k.ordered, "x"), k.whole, k.brought, format(k.leaving, "x"), k.shown_at)
            for k in self._models.values()
        ]  # fmt: skip
        self.unwritten = not write_page(self._path, msgspec.json.encode(_Page(FORMAT, rows)))

"""The cache's own records in SQLite: tags and generations, models and blobs, proofs, last use, history.

All of it could be rebuilt, slower: manifests are beside it, tags are links too, and a blob
without a proof record is hashed again before it's believed. Only the history would be lost.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from os import stat_result
from pathlib import Path
from sys import intern
from typing import NamedTuple

from p2pcache.core.pool import eviction
from p2pcache.core.pool.eviction import Uses
from p2pcache.errors import NoSpace
from p2pcache.ids import Ref
from p2pcache.io.disk.blob_needs import BlobNeeds
from p2pcache.io.disk.claims import ClaimRecords
from p2pcache.io.disk.reserve_file import Spare

HISTORY_ROWS = 1000  # weeks of a busy node, in 200 kB
# Rows of failures: a client that fails again and again must not push the rest out.
HISTORY_FAILURES = 200

# The step to version n is _SCHEMAS[n - 1]; a step that was released never changes.
_SCHEMAS = ("""
create table tags (namespace text, name text, tag text, digest text not null,
  generation integer not null, primary key (namespace, name, tag)) without rowid;
create table generations (namespace text, name text, tag text, generation integer not null,
  primary key (namespace, name, tag)) without rowid;
create table models (digest text primary key, bytes integer not null, files integer not null,
  last_used real not null) without rowid;
create table model_blobs (digest text, blob text, size integer not null,
  primary key (digest, blob)) without rowid;
create index blob_models on model_blobs (blob);
create table proofs (blob text primary key, size integer not null, mtime_ns integer not null)
  without rowid;
""", """
create table history (id integer primary key, ended real not null, action text not null,
  ref text not null, digest text not null, bytes integer not null, seconds real not null,
  bytes_origin integer not null, bytes_peers integer not null, bytes_local integer not null,
  code integer not null, message text not null, times integer not null);
""", """
alter table history add column report text not null default '';
""", """
create table asked (namespace text, name text, tag text, digest text not null,
  primary key (namespace, name, tag)) without rowid;
""", """
alter table models add column uses real not null default 0;
alter table models add column level real not null default 0;
alter table models add column evicted real not null default 0;
create table claims (kind text, namespace text, name text, ref text, digest text not null,
  made real not null, ends real not null, pid integer not null, started text not null,
  primary key (kind, namespace, name, ref)) without rowid;
""")  # fmt: skip
SCHEMA_VERSION = len(_SCHEMAS)


class ModelRow(NamedTuple):
    """The record of one model."""

    digest: str
    size_bytes: int
    files: int
    last_used: float  # unix seconds
    uses: float = 0.0  # older ones count less
    level: float = 0.0  # the cache's at its last use; of an evicted model, its value then
    evicted: float = 0.0  # unix seconds; 0: it wasn't

    @property
    def as_uses(self) -> Uses:
        """Its uses, as the decider of evictions wants them."""
        return Uses(self.uses, self.level, self.last_used)


Proof = tuple[str, int, int]
"""State of a blob's file when its bytes were last proved: the blob, size, mtime_ns. As the table has it: a cache has
hundreds of thousands."""


def proof_of(blob: str, info: stat_result) -> Proof:
    """The proof record of a blob whose file's bytes are proved."""
    return blob, info.st_size, info.st_mtime_ns


class HistoryRow(NamedTuple):
    """One action of this node that has ended."""

    ended: float  # unix seconds
    action: str  # pull, warm, push, rm or prune
    ref: str  # "" for an action on no single model
    digest: str  # hex; "" if it never became known
    size_bytes: int  # of the model, or freed by rm and prune
    seconds: float
    bytes_origin: int = 0
    bytes_peers: int = 0
    bytes_local: int = 0
    code: int = 0  # exit code
    message: str = ""  # of a failure
    times: int = 1  # equal failures in a row share one row
    report: str = ""  # of a pull: where its time went, as JSON

    def with_earlier(self, before: "HistoryRow") -> "HistoryRow | None":
        """One row for this failure and an equal one just before it; None: they aren't equal failures."""
        same = before.kind == self.kind
        return self._replace(times=before.times + self.times) if self.code and same else None

    @property
    def kind(self) -> tuple[str, str, int]:
        """What equal failures have in common."""
        # A push that is refused at its manifest has no name yet, only a digest.
        return self.action, self.ref or self.digest, self.code

    def as_json(self) -> dict[str, object]:
        """The row in the form of docs/api.md."""
        # Without local bytes, which took no time: a resumed pull isn't quicker than its link.
        moved = self.bytes_origin + self.bytes_peers or self.size_bytes
        rate = moved / self.seconds if self.seconds and not self.code else 0.0
        return {
            "ended": self.ended, "action": self.action, "ref": self.ref, "digest": self.digest,
            "bytes": self.size_bytes, "seconds": self.seconds, "rate": round(rate),
            "bytes_origin": self.bytes_origin, "bytes_peers": self.bytes_peers,
            "bytes_local": self.bytes_local, "code": self.code, "message": self.message,
            "times": self.times,
        }  # fmt: skip


def last_pull(rows: Iterable[HistoryRow], ref: Ref, digest: str) -> dict[str, object]:
    """The newest pull of a model as JSON for an explanation: `digest`, `last`, `report`; {} for none.

    Args:
        rows: the history, the newest first.
        ref: what the model is called.
        digest: of its manifest; "" if that isn't known.
    """
    for row in rows:
        # A failed pull of the same digest by another ref quotes that ref.
        same = digest and row.digest == digest and not row.code
        if row.action in ("pull", "warm") and (row.ref in (str(ref), ref.full) or same):
            report = json.loads(row.report) if row.report else None
            return {
                "digest": row.digest or digest,
                "last": row.as_json() | {"ref": str(ref)},
                "report": report,
            }
    return {}


class Records(ClaimRecords):
    """The tables of the agent's database. Thread-safe."""

    def __init__(self, path: Path, spare: Spare | None = None) -> None:
        """Open or create the database; arguments and errors are those of `SqliteFile`."""
        super().__init__(path, _SCHEMAS, spare)
        # The table model_blobs, once it was read: to read a large one takes longer than `ls` may. Who changes the table
        # holds the lock, so that a first reading misses nothing.
        self._needs: BlobNeeds | None = None
        self._needs_lock = threading.Lock()

    # -- tags ------------------------------------------------------------------------------------

    def set_tag(self, key: tuple[str, str, str], digest: str, generation: int) -> None:
        """Point a tag at a digest and remember the generation as seen."""
        with self._write() as db:
            db.execute("replace into tags values (?,?,?,?,?)", (*key, digest, generation))
            db.execute("delete from asked where namespace=? and name=? and tag=?", key)
            db.execute("replace into generations values (?,?,?,?)", (*key, generation))

    def remove_tag(self, key: tuple[str, str, str]) -> None:
        """Delete a tag; its seen generation stays, so that it can't be rolled back unnoticed."""
        self._delete(
            ("delete from tags where namespace=? and name=? and tag=?", [key]),
            ("delete from asked where namespace=? and name=? and tag=?", [key]),
        )

    def tag(self, key: tuple[str, str, str]) -> tuple[str, int] | None:
        """(digest, generation) of a tag."""
        rows = self._all(
            "select digest, generation from tags where namespace=? and name=? and tag=?", key
        )
        return (str(rows[0][0]), _int(rows[0][1])) if rows else None

    def generation(self, key: tuple[str, str, str]) -> int:
        """The generation last seen for a tag; 0 if none."""
        rows = self._all(
            "select generation from generations where namespace=? and name=? and tag=?", key
        )
        return _int(rows[0][0]) if rows else 0

    def tags(self) -> list[tuple[Ref, str]]:
        """Every tag with its digest."""
        return self._named("tags")

    def tags_of(self, digest: str) -> list[Ref]:
        """The tags of one model: a cache has thousands of others."""
        return [ref for ref, _ in self._named("tags where digest=?", digest)]

    def asked_of(self, digest: str) -> list[Ref]:
        """The tags by which one model was pulled, in pulls that were interrupted; without tags that are set."""
        return [ref for ref, _ in self._named(_UNSET_OF, digest)]

    def set_asked(self, key: tuple[str, str, str], digest: str) -> None:
        """Record the tag by which a model is pulled, until the tag is set."""
        with self._write() as db:
            db.execute("replace into asked values (?,?,?,?)", (*key, digest))

    def forget_asked(self, key: tuple[str, str, str], digest: str) -> None:
        """Delete what `set_asked` recorded, unless the tag is that of another model by now."""
        row = (*key, digest)
        self._delete(
            ("delete from asked where namespace=? and name=? and tag=? and digest=?", [row])
        )

    def asked(self) -> list[tuple[Ref, str]]:
        """Tags of interrupted pulls with the digest that each meant."""
        return self._named("asked")

    def _named(self, source: str, *values: str) -> list[tuple[Ref, str]]:
        rows = self._all(f"select namespace, name, tag, digest from {source}", values)  # noqa: S608  sources are ours
        return [(Ref(str(a), str(b), str(c)), str(d)) for a, b, c, d in rows]

    # -- models ----------------------------------------------------------------------------------

    def add_model(self, row: ModelRow, blobs: Iterable[tuple[str, int]]) -> None:
        """Remember a model and which blobs (id, size) it needs; its earlier uses stay."""
        needs = {intern(blob): size for blob, size in blobs}
        with self._needs_lock:
            with self._write() as db:
                db.execute(_ADD_MODEL, row)
                db.execute("delete from model_blobs where digest=?", (row.digest,))
                db.executemany(
                    "insert into model_blobs values (?,?,?)",
                    [(row.digest, *one) for one in needs.items()],
                )
            if self._needs is not None:
                shared = self._pairs(_SHARED_WITH, (row.digest,))
                self._needs.put_needs(row.digest, needs, shared)

    def remove_model(self, digest: str) -> None:
        """Forget a model and its tags."""
        tables = ("tags", "models", "model_blobs")
        deletes = [(f"delete from {table} where digest=?", [(digest,)]) for table in tables]  # noqa: S608  names are ours
        with self._needs_lock:
            self._delete(*deletes)
            self._drop_needs(digest)
        # A running pull may take the spare space meanwhile. Refs of interrupted pulls of a model that is
        # gone do no harm: they may stay.
        with suppress(NoSpace):
            self._delete(("delete from asked where digest=?", [(digest,)]))

    def touch(self, digest: str, now: float) -> None:
        """Record that a model was used."""
        with self._write() as db:
            asked = "select uses, level, last_used, (select max(level) from models) from models"
            row = db.execute(f"{asked} where digest=?", (digest,)).fetchone()
            if row is not None:
                uses = eviction.used(Uses(*row[:3]), row[3], now)
                asked = "update models set uses=?, level=?, last_used=? where digest=?"
                db.execute(asked, (*uses, digest))

    def evict_model(self, digest: str, value: float, evicted: float) -> None:
        """Record that a model was evicted: it needs no blobs any more; names and uses stay.

        Args:
            digest: of the model.
            value: its value then.
            evicted: when, unix seconds.
        """
        with self._needs_lock:
            self._delete(
                ("update models set level=max(level,?), evicted=? where digest=?", [(value, evicted, digest)]),
                ("delete from model_blobs where digest=?", [(digest,)]),
            )  # fmt: skip
            self._drop_needs(digest)

    def _drop_needs(self, digest: str) -> None:
        if self._needs is not None:
            self._needs.drop_needs(digest)

    def model_row(self, digest: str) -> ModelRow | None:
        """The record of one model; None: there is none."""
        rows = self._all(f"{_MODELS} where digest=?", (digest,))
        return ModelRow(*rows[0]) if rows else None  # type: ignore[arg-type] # as the schema says

    def model_rows(self) -> list[ModelRow]:
        """Every model, most recently used first."""
        rows = self._all(f"{_MODELS} order by last_used desc, digest")
        return [ModelRow(*row) for row in rows]  # type: ignore[arg-type] # as the schema says

    def blobs_of(self, digest: str) -> list[tuple[str, int]]:
        """The blobs (id, size) of a model."""
        rows = self._all("select blob, size from model_blobs where digest=?", (digest,))
        return [(str(a), _int(b)) for a, b in rows]

    def all_blobs(self) -> dict[str, dict[str, int]]:
        """The blobs of every model, with their sizes, by the model's digest."""
        with self._needs_lock:
            return self._read_needs().all_needs()

    def shared_blobs(self) -> Mapping[str, frozenset[str]]:
        """The blobs of each model that another model needs, too, by the digests of those that have some."""
        with self._needs_lock:
            return self._read_needs().all_shared()

    def _read_needs(self) -> BlobNeeds:
        if self._needs is None:
            found: dict[str, dict[str, int]] = {}
            for digest, blob, size in self._all("select digest, blob, size from model_blobs"):
                found.setdefault(str(digest), {})[intern(str(blob))] = _int(size)
            self._needs = BlobNeeds(found, self._pairs(_SHARED))
        return self._needs

    def _pairs(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[str, str]]:
        return [(intern(str(blob)), str(digest)) for blob, digest in self._all(query, values)]

    def own_blobs(self, digest: str) -> list[str]:
        """The blobs of a model that no other model needs."""
        rows = self._all(
            "select blob from model_blobs as own where digest=?1 and not exists "
            "(select 1 from model_blobs where blob=own.blob and digest<>?1)", (digest,)
        )  # fmt: skip
        return [str(row[0]) for row in rows]

    def named_blobs(self) -> set[str]:
        """Every blob that some model needs."""
        return {str(row[0]) for row in self._all("select distinct blob from model_blobs")}

    def models_with(self, blob: str) -> list[str]:
        """Digests of the models that need a blob."""
        rows = self._all("select digest from model_blobs where blob=?", (blob,))
        return [str(row[0]) for row in rows]

    # -- proofs ----------------------------------------------------------------------------------

    def add_proofs(self, proofs: Iterable[Proof]) -> None:
        """Remember files whose bytes were proved."""
        with self._write() as db:
            db.executemany("replace into proofs values (?,?,?)", proofs)

    def remove_proofs(self, blobs: Iterable[str]) -> None:
        """Forget proofs, before the files change."""
        self._delete(("delete from proofs where blob=?", [(blob,) for blob in blobs]))

    def proofs(self) -> dict[str, Proof]:
        """Every proof record."""
        rows = self._all("select blob, size, mtime_ns from proofs")
        return {intern(str(row[0])): row for row in rows}  # type: ignore[misc] # as the schema says

    # -- history ---------------------------------------------------------------------------------

    def add_history(self, row: HistoryRow) -> None:
        """Add an action that ended; the oldest is deleted.

        A failure that repeats the newest row is counted there: a pod in a crash loop must not push
        everything else out.
        """
        with self._write() as db:
            newest = db.execute("select * from history order by id desc limit 1").fetchone()
            one = None if newest is None else row.with_earlier(HistoryRow(*newest[1:]))
            if one is not None:
                values = (*one, newest[0])
                names = ", ".join(f"{name}=?" for name in _HISTORY_COLUMNS)
                db.execute(f"update history set {names} where id=?", values)  # noqa: S608  names are ours
                return
            marks = ",".join("?" * len(row))
            db.execute(f"insert into history values (null,{marks})", row)  # noqa: S608  marks alone
            db.execute(_FORGET_OLD, (HISTORY_ROWS,))
            db.execute(_FORGET_FAILURES, (HISTORY_FAILURES,))

    def history(self, limit: int) -> list[HistoryRow]:
        """Actions that ended, the newest first."""
        rows = self._all("select * from history order by id desc limit ?", (limit,))
        return [HistoryRow(*row[1:]) for row in rows]  # type: ignore[arg-type] # as the schema says


_HISTORY_COLUMNS = (
    "ended", "action", "ref", "digest", "bytes", "seconds",
    "bytes_origin", "bytes_peers", "bytes_local", "code", "message", "times", "report",
)  # fmt: skip
_MODELS = "select digest, bytes, files, last_used, uses, level, evicted from models"
_ADD_MODEL = """insert into models values (?,?,?,?,?,?,?) on conflict (digest) do update set
  bytes=excluded.bytes, files=excluded.files, evicted=0"""
_UNSET_OF = """asked where digest=? and not exists (select 1 from tags
  where namespace=asked.namespace and name=asked.name and tag=asked.tag)"""
_SHARED = """select blob, digest from model_blobs
  where blob in (select blob from model_blobs group by blob having count(*) > 1)"""
_SHARED_WITH = """select blob, other.digest from model_blobs as own join model_blobs as other using (blob)
  where own.digest=?1 and other.digest<>?1"""
_FORGET_OLD = """delete from history
  where id <= (select id from history order by id desc limit 1 offset ?)"""
_FORGET_FAILURES = """delete from history where code != 0
  and id <= (select id from history where code != 0 order by id desc limit 1 offset ?)"""


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value

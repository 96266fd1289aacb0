"""Pins and holds in the cache's records: why a model must not be evicted, by whom, and for how long."""

from typing import Literal, NamedTuple

from p2pcache.core.pool.settings import MAX_CLAIMS
from p2pcache.errors import Conflict
from p2pcache.ids import Ref
from p2pcache.io.clock import start_of
from p2pcache.io.disk.sqlite_file import SqliteFile

ClaimKind = Literal["pin", "hold"]


class Claim(NamedTuple):
    """One reason not to evict one model. Its namespace is the model's."""

    kind: ClaimKind  # an operator's pin, a reader's hold
    namespace: str
    name: str  # of the reason
    ref: str  # of the model, in full
    digest: str  # of the model; "": whatever the ref names on this node
    made: float  # unix seconds
    ends: float  # unix seconds; 0: never by itself
    pid: int = 0  # of the process with which it ends; 0: none
    started: str = ""  # when that process started: numbers of processes are used again

    def lasts(self, now: float) -> bool:
        """Whether it still counts; `now` in unix seconds."""
        if self.ends and now >= self.ends:
            return False
        return not self.pid or start_of(self.pid) == self.started

    def as_json(self) -> dict[str, object]:
        """The row of `pins`."""
        return {
            "kind": self.kind, "name": self.name, "ref": str(Ref.parse(self.ref)), "digest": self.digest,
            "made": self.made, "ends": self.ends, "pid": self.pid,
        }  # fmt: skip

    @property
    def reason(self) -> str:
        """Why the model stays, for people."""
        return f"pinned by {self.name}" if self.kind == "pin" else f"held by {self.name}"


class ClaimRecords(SqliteFile):
    """The table of pins and holds."""

    def put_claim(self, claim: Claim) -> None:
        """Add a claim, or renew the one of this kind, name and ref.

        Raises:
            Conflict: its namespace has too many.
            NoSpace: the disk is full.
        """
        with self._write() as db:
            of_others = "select count(*) from claims where namespace=? and not (kind=? and name=? and ref=?)"
            key = (claim.namespace, claim.kind, claim.name, claim.ref)
            if db.execute(of_others, key).fetchone()[0] >= MAX_CLAIMS:
                raise Conflict(
                    f"namespace {claim.namespace} has {MAX_CLAIMS} pins and holds here; end some of them first"
                )
            marks = ",".join("?" * len(claim))
            db.execute(f"replace into claims values ({marks})", claim)  # noqa: S608  marks alone

    def all_claims(self) -> list[Claim]:
        """Every claim, also of the past."""
        rows = self._all("select * from claims order by namespace, ref, kind, name")
        return [Claim(*row) for row in rows]  # type: ignore[arg-type] # as the schema says

    def end_claims(self, claims: list[Claim]) -> None:
        """Delete claims."""
        keys = [(c.kind, c.namespace, c.name, c.ref) for c in claims]
        self._delete(("delete from claims where kind=? and namespace=? and name=? and ref=?", keys))

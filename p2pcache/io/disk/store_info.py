"""Facts of a store, as its callers and people get them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from p2pcache.ids import Ref


class ModelInfo(NamedTuple):
    """One model as `ls` shows it."""

    digest: str
    size_bytes: int  # sum of the files
    files: int
    bytes_done: int  # proved bytes, of the distinct blobs' `bytes_total`
    bytes_total: int
    complete: bool
    tags: list[Ref]
    asked: list[Ref]  # refs of pulls that were interrupted
    last_used: float  # unix seconds
    uses: float = 0.0  # older ones count less
    remote: bool = False  # evicted: it has no bytes here, and comes back when it is pulled
    kept: str = ""  # the cluster keeps it here: "whole", or a "part" of it; "": it doesn't
    kept_as: Ref | None = None  # what the order calls it
    placed: Ref | None = None  # its name where it was pulled by digest, or its tag has moved on
    spellings: Mapping[str, str] = MappingProxyType({})  # names that are written with capitals

    @property
    def partly_evicted(self) -> bool:
        """Whether it was complete once, and a part of it went since."""
        return bool(self.tags) and not (self.complete or self.remote or self.kept)

    @property
    def names(self) -> list[Ref]:
        """All refs that people know it by."""
        named = [*self.tags, *self.asked]
        return named or ([self.kept_as] if self.kept_as is not None else [])

    @property
    def written_names(self) -> list[str]:
        """`names` as people write them, with their capitals."""
        written = ((self.spellings.get(ref.full_name, ref.full_name), ref) for ref in self.names)
        return [f"{name}:{ref.tag}" for name, ref in written]

    @property
    def called(self) -> str:
        """All its names, or its digest, for people."""
        return ", ".join(self.written_names) or f"blake3:{self.digest}"

    def as_json(self) -> dict[str, object]:
        """The row of `ls` and `show`."""
        names = self.names
        first = names[0] if names else self.placed
        return {
            "ref": str(first) if names else f"@blake3:{self.digest}",
            "namespace": first.namespace if first else "", "name": first.name if first else "",
            "tags": [ref.tag for ref in names], "refs": [ref.short for ref in names],
            "digest": self.digest, "bytes": self.size_bytes, "files": self.files,
            "bytes_done": self.bytes_done, "complete": self.complete, "remote": self.remote,
            "partly_evicted": self.partly_evicted, "last_used": self.last_used, "kept": self.kept,
            "spellings": dict(self.spellings),
        }  # fmt: skip


class TagState(NamedTuple):
    """The model that a tag points at, on this node."""

    digest: str
    generation: int


class Pruned(NamedTuple):
    """The result of `prune`, done or only planned."""

    removed: list[str]  # for people
    bytes_freed: int  # of disk
    # In use by other processes, or refused by the disk: the model or import, and the process or reason, for people.
    kept: list[str]
    unsure: str = ""  # why more of them may be in use, for people; "": none is

    def plus(self, other: "Pruned") -> "Pruned":
        """The result of both."""
        return Pruned(
            [*self.removed, *other.removed], self.bytes_freed + other.bytes_freed,
            [*self.kept, *other.kept], self.unsure or other.unsure,
        )  # fmt: skip


class Usage(NamedTuple):
    """The cache's share of its disk."""

    cached_bytes: int
    free_bytes: int
    promised_bytes: int = 0  # of running pulls, without blocks of the disk yet
    filled_bytes: int = 0  # what counts against the quota
    free_inodes: int | None = None  # None: the disk doesn't count them
    read_only: bool = False  # the disk calls itself so, or refused a write and does so still


def cached_part(digest: str, models: Iterable[ModelInfo]) -> dict[str, object] | None:
    """How much of a model is in the cache, as JSON; None: nothing is.

    Args:
        digest: of its manifest.
        models: of the cache.
    """
    for known in models:
        if known.digest == digest:
            return {
                "bytes_done": known.bytes_done, "bytes_total": known.bytes_total,
                "complete": known.complete,
            }  # fmt: skip
    return None


def why_no_bytes(ref: Ref, known: ModelInfo) -> str:
    """Why nothing can be read of a model that this cache lists, and what to do, for people."""
    what = "was evicted" if known.remote else "is listed here, but its manifest is damaged"
    return f"{ref} {what}; `p2pcache pull {ref}` brings it back"


def why_no_pull(ref: Ref, models: Iterable[ModelInfo]) -> str:
    """Why the history has no pull of a model, and what to do, for people.

    A process that was killed writes nothing down; a model that was pushed here was never pulled.

    Args:
        ref: the model in question.
        models: of the cache.
    """
    for known in models:
        names = [name.tag_key for name in known.names]
        meant = known.digest == ref.digest if ref.digest else ref.tag_key in names
        if not meant:
            continue
        if known.complete:
            return f"{ref} is here, all of it, but no pull of it is in the history: it was pushed here, or is old"
        share = known.bytes_done / max(1, known.bytes_total)
        return (
            f"{share:.0%} of {ref} are here, of a pull that was killed with its agent; to resume it, run: "
            f"p2pcache pull {ref}"
        )
    return f"nothing is known of a pull of {ref} here; run: p2pcache pull {ref}"


def by_digest(names: dict[Ref, str]) -> dict[str, list[Ref]]:
    """The refs of each model."""
    found: dict[str, list[Ref]] = {}
    for ref, digest in names.items():
        found.setdefault(digest, []).append(ref)
    return found

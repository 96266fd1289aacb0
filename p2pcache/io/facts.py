"""What a store tells of itself."""

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
    asked: list[Ref]  # what pulls that haven't ended well called it
    last_used: float  # unix seconds

    @property
    def names(self) -> list[Ref]:
        """What people call it."""
        return [*self.tags, *self.asked]


class TagState(NamedTuple):
    """What a tag points at here."""

    digest: str
    generation: int


class Pruned(NamedTuple):
    """What `prune` removed (or would remove), for people, and the disk bytes that it freed."""

    removed: list[str]
    bytes_freed: int


class Usage(NamedTuple):
    """The cache's share of its disk."""

    cached_bytes: int
    free_bytes: int

"""Blobs of models that were imported in place: read at the origin if it has them, else where the record says.

A model that was pushed costs no request more than before: the record is asked for when the origin turns out to lack a
blob.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.source_record import CHANGED, BlobPlace, SourceRecord
from p2pcache.errors import NotFound, OriginChanged, P2PCacheError
from p2pcache.io.origins.base import Body, NoContainer
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.retry import never
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.source import Sources

MAX_RECORDS = 16  # kept: a record of a model of thousands of files has a megabyte


class SourcedReads:
    """The sources of an agent, and the records that it has seen. Thread-safe; blocking."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._records: OrderedDict[str, SourceRecord] = OrderedDict()

    def blobs(self, repo: OriginRepo, layout: Layout) -> "ModelBlobs":
        """What opens the blobs of one model."""
        return ModelBlobs(self, repo, layout)

    def known(self, digest: str) -> SourceRecord | None:
        """The record of a model whose blobs the origin was found to lack."""
        with self._lock:
            return self._records.get(digest)

    def learn(self, repo: OriginRepo, digest: str) -> SourceRecord | None:
        """Ask the origin for a model's record; None: it has none."""
        record = repo.sources_of(digest)
        if record is not None:
            with self._lock:
                self._records[digest] = record
                while len(self._records) > MAX_RECORDS:
                    self._records.popitem(last=False)
        return record

    def unlearn(self, digest: str) -> None:
        """Ask for a model's record again: it was imported anew, or its places are no good."""
        with self._lock:
            self._records.pop(digest, None)

    def open_place(
        self, place: BlobPlace, size: int, start: int, length: int, cancelled: Callable[[], bool]
    ) -> Body:
        """Read a range of a blob of `size` bytes at one place.

        Raises:
            NotAllowed: this node has no such source.
        """
        file = SourceFile("", place.key, size, place.validator)
        return self._sources.named(place.source).open_file(file, start, length, cancelled)

    def rest(self) -> None:
        """Drop unused pooled connections."""
        for source in self._sources:
            source.rest()


class ModelBlobs:
    """Opens blobs of one model."""

    def __init__(self, reads: SourcedReads, repo: OriginRepo, layout: Layout) -> None:
        self._reads = reads
        self._repo = repo
        self._layout = layout

    def open_blob(
        self, blob: str, start: int, length: int, cancelled: Callable[[], bool] = never
    ) -> Body:
        """Read a range of a blob. Nothing is sent before the first `readinto`, which raises what is wrong."""
        return _FirstGood(self._places(blob, start, length, cancelled), self._failed)

    def _places(
        self, blob: str, start: int, length: int, cancelled: Callable[[], bool]
    ) -> "Iterator[_Way]":
        """Ways to read it, the likeliest first."""

        def at_origin() -> Body:
            return self._repo.open_blob(blob, start, length, cancelled)

        digest = self._layout.digest
        record = self._reads.known(digest)
        if record is None:
            # Only what the origin lacks lies elsewhere. Storage that refuses us is asked nothing more.
            yield _Way(at_origin, goes_on=lambda error: isinstance(error, NotFound))
            record = self._reads.learn(self._repo, digest)
        size = self._layout.blobs[self._layout.blob_of_id[blob]].size
        places = record.blobs.get(blob, []) if record is not None else []
        for place in places:
            at_place = partial(self._reads.open_place, place, size, start, length, cancelled)
            yield _Way(at_place, goes_on=_about_place, told=_of_place)
        if places:
            yield _Way(at_origin, goes_on=_about_place)  # it may have been pushed meanwhile

    def _failed(self) -> None:
        self._reads.unlearn(self._layout.digest)


class _Way(NamedTuple):
    """One place where a blob may lie."""

    open: Callable[[], Body]
    goes_on: Callable[[P2PCacheError], bool]  # whether another place is tried after this error
    told: Callable[[P2PCacheError], P2PCacheError] = lambda error: error  # what is said of it then


class _FirstGood(Body):
    """The first of several bodies that gives a byte."""

    def __init__(self, ways: Iterator[_Way], on_failed: Callable[[], None]) -> None:
        self._ways = ways
        self._on_failed = on_failed
        self._body: Body | None = None
        self._begun = False

    def readinto(self, buffer: memoryview) -> int:
        if self._begun and self._body is not None:
            return self._body.readinto(buffer)
        worst: P2PCacheError | None = None
        for way in self._ways:
            try:
                self.close()
                self._body = way.open()
                count = self._body.readinto(buffer)
            except P2PCacheError as error:
                if isinstance(error, NoContainer) or not way.goes_on(error):
                    raise
                worst = _weightier(worst, way.told(error))
            else:
                self._begun = True
                return count
        self._on_failed()
        assert worst is not None, "there is at least one way"
        raise OriginChanged(str(worst)) if isinstance(worst, _Gone) else worst

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


class _Gone(NotFound):
    """A file that a place held at the import is gone: a change, unless another place may have the bytes."""


def _of_place(error: P2PCacheError) -> P2PCacheError:
    """An error of a place that held the blob when it was imported: a file that is gone has changed."""
    return _Gone(f"{error}: it {CHANGED}") if isinstance(error, NotFound) else error


def _about_place(error: P2PCacheError) -> bool:
    """Whether another place may have the bytes."""
    return isinstance(error, NotFound | OriginChanged) or error.exit_code in (4, 7)


def _weightier(one: P2PCacheError | None, other: P2PCacheError) -> P2PCacheError:
    """The error that says more; of two that say as much the first one."""
    return other if one is None or _weight(other) > _weight(one) else one


def _weight(error: P2PCacheError) -> int:
    """A place that may have the bytes yet says most: it refuses, or is away. The origin's own lack says nothing."""
    if isinstance(error, OriginChanged):
        return 2
    if isinstance(error, NotFound):
        return 1 if isinstance(error, _Gone) else 0
    return 3

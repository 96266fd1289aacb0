"""A configured source: its reader, opened when it is first used, with retries around it."""

import threading
from collections.abc import Callable, Iterator, Sequence

from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.config import redacted
from p2pcache.io.origins.base import Body, OriginSettings
from p2pcache.io.origins.causes import one_line
from p2pcache.io.origins.retry import Attempts, ResumingBody, RetryPolicy, never
from p2pcache.io.sources import is_kind, open_reader, unknown_kind
from p2pcache.io.sources.base import NoRanges, SourceFile, SourceReader, checked
from p2pcache.io.sources.settings import SourceSettings


class Source:
    """One source. Thread-safe; blocking."""

    def __init__(self, name: str, settings: SourceSettings) -> None:
        """Nothing is opened yet."""
        self.name = name
        self.settings = settings
        self._policy = RetryPolicy(OriginSettings().retry_for_s)
        self._lock = threading.Lock()
        self._reader: SourceReader | None = None

    @property
    def reader(self) -> SourceReader:
        """The reader.

        Raises:
            UsageError, NotFound, NotAllowed: it can't be opened.
        """
        with self._lock:
            if self._reader is None:
                self._reader = open_reader(self.settings)
            return self._reader

    def files(self, place: str) -> list[SourceFile]:
        """The files of a model below `place`, by path; a listing that breaks starts again.

        Raises:
            NotFound, UsageError, NotAllowed, OriginUnavailable: as `SourceReader.files`.
        """
        reader = self.reader
        found = self._policy.call(lambda: list(checked(reader.files(place), reader.url)))
        return sorted(found, key=lambda file: file.path.encode())

    def open_file(
        self, file: SourceFile, start: int, length: int, cancelled: Callable[[], bool] = never
    ) -> Body:
        """Read a range; retries until it is complete, final or cancelled. Nothing is sent before the first read."""
        reader = self.reader

        def opened(offset: int, rest: int) -> Body:
            return reader.open(file, offset, rest)

        return ResumingBody(opened, start, length, Attempts(self._policy, cancelled, file.key))

    def need_parts(
        self, files: Sequence[SourceFile], cancelled: Callable[[], bool] = never
    ) -> None:
        """Find out, by the last byte of the largest file, that parts of files can be read.

        Args:
            files: of a model here.
            cancelled: whether nobody wants to know any more.

        Raises:
            UsageError: nodes couldn't read a model there, each another part of it.
            P2PCacheError: as a read of it.
        """
        largest = max(files, key=lambda file: file.size, default=None)
        if largest is None or largest.size < 2:
            return
        try:
            with self.open_file(largest, largest.size - 1, 1, cancelled) as body:
                body.readinto(memoryview(bytearray(1)))
        except NoRanges as error:
            raise UsageError(
                f"{error}, so nodes can't share the reading; import with --copy, or serve the files by a server that "
                "knows ranges (nginx, Caddy, `rclone serve http`)"
            ) from None

    def rest(self) -> None:
        """Drop unused pooled connections."""
        with self._lock:
            if self._reader is not None:
                self._reader.rest()

    def close(self) -> None:
        """Drop pooled connections. The source can't be used afterwards."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None


def place_in(url: str, source_url: str) -> str | None:
    """What a URL names inside of a source; None: it isn't inside. "" is the source itself."""
    base = source_url.rstrip("/")
    if source_url.endswith("://"):  # every repository of a hub
        return url.removeprefix(source_url) if url.startswith(source_url) else None
    if url.rstrip("/") == base:
        return ""
    return url[len(base) + 1 :].strip("/") if url.startswith(f"{base}/") else None


def _unheld(url: str) -> UsageError:
    """Why a URL can't be imported that lies in no source, and what would change that."""
    named = url.partition("?")[0]  # what is behind may be a signature
    scheme, mark, rest = named.partition("://")
    if not mark:
        return UsageError(
            f"not a URL: {one_line(named)!a}; a directory of this machine becomes a model by `p2pcache push DIR REF`"
        )
    if not is_kind(scheme):
        return unknown_kind(redacted(one_line(named)))
    site = rest.partition("/")[0].rpartition("@")[2]
    root = "hf://" if scheme == "hf" else f"{scheme}://{site}" if site else "file:///DIR"
    return UsageError(
        f"no configured source holds {redacted(named)}; where the reading is done (by the agent, if one is here), put "
        f'url = "{one_line(root)}" below [sources.NAME] in the settings file, or set P2PCACHE_SOURCES=NAME='
        f"{one_line(root)}"
    )


class Sources:
    """The configured sources of one process, by name."""

    def __init__(self, settings: "dict[str, SourceSettings]") -> None:
        self._sources = {name: Source(name, one) for name, one in settings.items()}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def named(self, name: str) -> Source:
        """The source of this name.

        Raises:
            NotAllowed: none is configured here.
        """
        source = self._sources.get(name)
        if source is None:
            raise NotAllowed(
                f"no source {name!r} is configured on this node; put [sources.{name}] with its url into the "
                "settings file, or leave the reading to nodes that have it"
            )
        return source

    def holding(self, url: str) -> tuple[Source, str]:
        """The source that a URL lies in, the nearest one, and the place inside of it.

        Raises:
            UsageError: no configured source holds it.
        """
        best: tuple[Source, str] | None = None
        for source in self:
            place = place_in(url, source.settings.url)
            if place is not None and (
                best is None or len(source.settings.url) > len(best[0].settings.url)
            ):
                best = source, place
        if best is None:
            raise _unheld(url)
        return best

    def close(self) -> None:
        """Close all that were opened."""
        for source in self:
            source.close()

"""The contract of sources: storages of others, from which models are imported in place. Blocking, thread-safe.

A source has a URL that an operator configured. Files are named by *keys* relative to it. Implementations translate
their library's errors once, here at the edge, as origins do. They never retry by themselves, `Source` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from p2pcache.core.format.manifest import MAX_FILES, check_path
from p2pcache.core.format.source_record import CHANGED, MAX_VALIDATOR_CHARS, check_source_key
from p2pcache.errors import InvalidManifest, OriginChanged, UsageError
from p2pcache.io.origins.base import Body


class NoRanges(UsageError):
    """The server sends whole files only, whatever part of one is asked for."""


class SourceFile(NamedTuple):
    """One file of a model at a source."""

    path: str  # inside the model; "" where only a place is named
    key: str  # relative to the source's URL
    size: int  # bytes
    validator: str = (
        ""  # equal validators mean equal bytes, nothing else; "": the source says nothing
    )
    sha256: bytes = b""  # 32 bytes of the whole file, as the source states it; b"": it doesn't


class SourceReader(ABC):
    """Lists and reads the files below one URL."""

    url: str
    """Without credentials: fit for logs and messages."""

    @abstractmethod
    def files(self, place: str) -> Iterator[SourceFile]:
        """The files of a model, each once, in no certain order.

        A place that may change under its name (a branch, a tag) is resolved once; keys then name what it meant, so
        that the same key means the same bytes for ever, as far as the source can say so.

        Args:
            place: relative to `url`, as a person typed it; "": the URL itself. It may be untrusted.

        Raises:
            NotFound: no such place.
            UsageError: it can't be a model, or a name can't be in one.
            NotAllowed, OriginUnavailable: the source refuses us, or doesn't answer.
        """

    @abstractmethod
    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """Read `length` (> 0) bytes from offset `start`, of exactly the bytes that were listed.

        Args:
            file: its key, size and validator count; they may be untrusted.
            start: offset in bytes.
            length: in bytes; `start + length` is at most the file's size.

        Raises:
            OriginChanged: other bytes are there now; from `changed`.
            NoRanges: it sends the file from its begin on.
            NotFound: the file is gone.
            NotAllowed, OriginUnavailable: the source refuses us, or doesn't answer.
        """

    def rest(self) -> None:  # noqa: B027 - most have nothing to do
        """Drop unused pooled connections; the next request makes new ones."""

    @abstractmethod
    def close(self) -> None:
        """Drop pooled connections. The reader can't be used afterwards."""


def changed(what: str) -> NoReturn:
    """Refuse bytes that aren't those that were imported; `what`: the file's URL.

    Raises:
        OriginChanged: always.
    """
    raise OriginChanged(f"{what} {CHANGED}")


def checked(files: Iterator[SourceFile], where: str) -> Iterator[SourceFile]:
    """The files of an untrusted list, if they may be in a model.

    Args:
        files: as a source listed them.
        where: its URL, for messages.

    Raises:
        UsageError: a name, size or validator that can't be right, a name twice, or too many files.
    """
    seen: set[str] = set()
    for file in files:
        try:
            check_path(file.path)
            check_source_key(file.key)
        except InvalidManifest as error:
            raise UsageError(
                f"{where}: {error}; leave it out with --exclude, or rename it"
            ) from None
        if file.size < 0 or len(file.sha256) not in (0, 32):
            raise UsageError(f"{where}: {file.path} has no size or digest that can be right")
        if len(file.validator) > MAX_VALIDATOR_CHARS or not file.validator.isprintable():
            raise UsageError(f"{where}: the validator of {file.path} can't be right")
        if file.path in seen:
            raise UsageError(f"{where}: {file.path} is listed twice")
        if len(seen) >= MAX_FILES:
            raise UsageError(
                f"{where} holds more than {MAX_FILES:,} files; narrow it with --include"
            )
        seen.add(file.path)
        yield file

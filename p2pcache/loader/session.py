"""An open model, and the ways in which a user closes what holds it."""

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NoReturn, Self, SupportsIndex

from p2pcache.errors import UsageError
from p2pcache.loader.resolve import Fetch, model_name, open_source
from p2pcache.loader.source.base import Source
from p2pcache.loader.source.catalog import WHOLE, Catalog, Part, open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource

Memory = Literal["auto", "mapped", "private"]
"""Whether host tensors are mappings of the model's files, or copies.

"auto": mappings of a published model, copies of any other directory. "mapped": mappings of any complete
directory; the caller knows that nobody shortens its files. "private": copies. A model that still arrives
is copied in any case.
"""


class Closeable(ABC):
    """An object with files and threads. It closes at the end of a `with`, or when it is collected."""

    @abstractmethod
    def close(self) -> None:
        """Close files and stop threads. More than once does no harm."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled or copied, since files and threads can't be.

        Raises:
            UsageError: always.
        """
        raise UsageError("an open model or load can't be pickled; open it where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # `__init__` failed
            self.close()


@dataclass(frozen=True, slots=True)
class Session:
    """An open model: its source, its table of tensors, the caller's time limit."""

    source: Source
    catalog: Catalog
    deadline: Deadline

    def mappable(self, memory: Memory) -> DirectorySource | None:
        """The source, if its files are mapped; None: its bytes are copied.

        Raises:
            UsageError: `memory` is another word.
        """
        if memory not in ("auto", "mapped", "private"):
            raise UsageError(f"memory {memory!r}: expected 'auto', 'mapped' or 'private'")
        source = self.source
        if memory == "private" or not isinstance(source, DirectorySource):
            return None
        return source if memory == "mapped" or source.published else None


def open_session(
    ref_or_dir: str | os.PathLike[str],
    agent: str | None,
    fetch: Fetch,
    timeout_s: float | None,
    part: Part = WHOLE,
) -> Session:
    """Open a model and read its headers.

    Args:
        ref_or_dir: a directory, a file, or a ref.
        agent: unix:///PATH or http://HOST:PORT; None: as the settings say.
        fetch: "all": the whole model comes to this node; "needed": only what this load reads.
        timeout_s: the time limit of the whole load, in seconds; None: no limit.
        part: the files to look at.

    Raises:
        UsageError: `fetch` is another word; no name; a time limit that is no number.
        NotFound, InvalidHeader, TimedOut, Unreachable: the model can't be opened.
    """
    if fetch not in ("all", "needed"):
        raise UsageError(f"fetch {fetch!r}: expected 'all' or 'needed'")
    deadline = Deadline(timeout_s, model_name(ref_or_dir))
    source = open_source(ref_or_dir, agent=agent, fetch=fetch, deadline=deadline)
    try:
        return Session(source, open_catalog(source, deadline, part), deadline)
    except BaseException:
        source.close()
        raise

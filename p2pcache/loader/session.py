"""What holds files and threads lets go of them at the end of a `with`, and when it is forgotten."""

from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from p2pcache.errors import UsageError


class Closing(ABC):
    """`close` ends it: called once or many times, or by nobody."""

    @abstractmethod
    def close(self) -> None:
        """Let go. More than once does no harm."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Files and threads don't travel.

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
        with suppress(AttributeError):  # __init__ failed
            self.close()

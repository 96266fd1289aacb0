"""The contract of origins: ranged reads, conditional writes, listing. Blocking, thread-safe.

An origin is the durable storage behind the fleet. Implementations translate their library's
errors once, here at the edge: `NotFound`, `NotAllowed`, `NoSpace`, `Conflict`, `OriginChanged`
and `OriginUnavailable` (the only retryable one) are all that a caller has to know. They never
retry by themselves, `retry.Retrying` does; the one exception is the parts of `put_file`.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from p2pcache.errors import NotFound, OriginUnavailable, UsageError

MAX_KEY_BYTES = 900  # S3 allows 1,024; the rest is for the prefix in the URL
_SEGMENT = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,254}")


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""`put(..., expect=ABSENT)`: create, never replace."""

Expect = str | Absent | None
"""Condition of a put: the present version, no object (`ABSENT`), or none (None)."""


class NoContainer(NotFound):
    """The bucket itself is missing: not the same as an object that isn't there yet."""


class Renewed(OriginUnavailable):
    """Nothing was done, for the credentials were refused. Others are in use now: retry at once."""


class ObjectInfo(NamedTuple):
    """One object. `version` is opaque: equal versions mean equal bytes, nothing else."""

    key: str
    size: int
    version: str


class Readable(Protocol):
    """The source of an upload, read once, in order."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read some bytes into `buffer`; 0 at the end."""


class Body(ABC):
    """The bytes of one ranged read. Use as a context manager; closing early drops the rest."""

    @abstractmethod
    def readinto(self, buffer: memoryview) -> int:
        """Read some bytes into `buffer`; short reads happen, 0 means that the range is complete.

        Raises:
            OriginUnavailable: the connection broke, stalled or ended before the range did.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection or file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class Origin(ABC):
    """A flat space of immutable-by-replacement objects under one URL.

    Keys are relative paths of `[A-Za-z0-9._@-]` segments; a segment never starts with a dot.
    """

    url: str
    """Without credentials: fit for logs and messages."""

    @property
    @abstractmethod
    def conditional_put(self) -> bool:
        """Whether `put` with `expect` is honoured (found out by trying, once, when first asked)."""

    @abstractmethod
    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        """A small object whole, with its version.

        Raises:
            NotFound: no such object.
            IntegrityError: it is larger than `limit` bytes.
        """

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo | None:
        """Size and version, or None where there is no such object."""

    @abstractmethod
    def open(self, key: str, start: int, length: int) -> Body:
        """Read `length` (> 0) bytes from offset `start`.

        Raises:
            NotFound: no such object.
            OriginChanged: the object ends before `start + length`.
        """

    @abstractmethod
    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        """Write a small object; readers see the old or the new one, never a mixture.

        Returns:
            The new version.

        Raises:
            Conflict: `expect` doesn't hold.
        """

    @abstractmethod
    def put_file(
        self,
        key: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Upload `size` bytes; visible as a whole or not at all, also when `source` raises.

        Args:
            key: where to.
            source: read once, in order; anything it raises ends the upload and is passed on.
            size: exact length in bytes.
            progress: called with the bytes that are stored in addition; on other threads, one call
                at a time.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix` (which ends with "/" or is "").

        Each once, in no certain order: some S3 stores sort by directory.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; one that isn't there is fine."""

    @abstractmethod
    def rest(self) -> None:
        """Drop unused pooled connections; the next request makes new ones."""

    @abstractmethod
    def close(self) -> None:
        """Drop pooled connections and threads. The origin can't be used afterwards."""


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """Limits and switches of origins; times in seconds. Credentials are never among them."""

    connect_timeout_s: float = 5.0  # a live endpoint in the same site answers in milliseconds
    read_timeout_s: float = 10.0  # without a single byte; S3's own p99.9 first byte is about 1 s
    retry_for_s: float = 30.0  # without progress; longer than a 5 s outage, and a user still waits
    pool: int = 88  # 64 readers, 8 parts and 16 small uploads at once
    part_bytes: int = 8 * 1024 * 1024  # of a multipart upload; 8 of them in memory are 64 MiB
    parts: int = 8  # uploaded at once: storage limits each connection
    s3_addressing: str = "auto"  # auto: path for own endpoints, virtual hosts for AWS
    s3_unsigned: bool = False  # public buckets, without any credentials
    s3_profile: str = ""  # in the files of AWS; "": as the environment says
    s3_endpoint: str = ""  # URL of the server; "": as the environment says

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Settings with P2PCACHE_S3_ADDRESSING and P2PCACHE_S3_UNSIGNED taken from `env`.

        Raises:
            UsageError: a value that isn't understood.
        """
        env = os.environ if env is None else env
        addressing = env.get("P2PCACHE_S3_ADDRESSING", "auto")
        if addressing not in ("auto", "path", "virtual"):
            raise UsageError(
                f"P2PCACHE_S3_ADDRESSING is {addressing!r}; expected path, virtual or auto"
            )
        unsigned = env.get("P2PCACHE_S3_UNSIGNED", "0")
        if unsigned not in ("", "0", "1"):
            raise UsageError(f"P2PCACHE_S3_UNSIGNED is {unsigned!r}; expected 1 or 0")
        return cls(s3_addressing=addressing, s3_unsigned=unsigned == "1")


def check_key(key: str) -> list[str]:
    """The segments of a key that can't leave its directory.

    Raises:
        UsageError: anything else.
    """
    segments = key.split("/")
    if len(key) > MAX_KEY_BYTES or not all(_SEGMENT.fullmatch(s) for s in segments):
        raise UsageError(f"not an origin key: {key[:120]!a}")
    return segments


def check_prefix(prefix: str) -> list[str]:
    """The segments of a listing prefix: "" or a key and a slash.

    Raises:
        UsageError: anything else.
    """
    if prefix == "":
        return []
    if not prefix.endswith("/"):
        raise UsageError(f"a listing prefix ends with a slash: {prefix[:120]!a}")
    return check_key(prefix[:-1])

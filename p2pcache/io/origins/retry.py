"""The one place of retries: exponential back-off with full jitter, until a deadline.

Libraries below retry nothing, so that retries don't multiply. What is worth a retry is written
in the error (`retryable`), not here.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from p2pcache.core import backoff
from p2pcache.errors import Conflict, NotFound, P2PCacheError
from p2pcache.io.origins.base import Body, Expect, ObjectInfo, Origin, Readable

T = TypeVar("T")

BASE_DELAY_S = 0.1  # a load balancer that lost one backend is good again at once
MAX_DELAY_S = 3.0  # the restart of a server is noticed so soon after it
_NAP_S = 0.1  # how quickly a cancelled caller wakes up


class Abandoned(P2PCacheError):
    """The caller's own `cancelled` said so while we waited for the next try."""


def never() -> bool:
    """The `cancelled` of callers that don't cancel."""
    return False


class RetryPolicy:
    """When to try again. One per origin; thread-safe (`random.Random` is)."""

    def __init__(self, retry_for_s: float, rng: random.Random | None = None) -> None:
        """Retry for `retry_for_s` seconds after the last progress; 0: never."""
        self.retry_for_s = retry_for_s
        self._rng = rng if rng is not None else random.Random()

    def call(self, action: Callable[[], T], cancelled: Callable[[], bool] = never) -> T:
        """Call `action` until it succeeds, fails for good or the time is over.

        Raises:
            Abandoned: `cancelled` turned true between two tries.
            P2PCacheError: what `action` raised last.
        """
        attempt = Attempts(self, cancelled)
        while True:
            try:
                return action()
            except P2PCacheError as error:
                attempt.failed(error)

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failure number `attempt` (from 0): full jitter."""
        return self._rng.uniform(0, backoff.pause_s(BASE_DELAY_S, MAX_DELAY_S, attempt))


class Attempts:
    """The tries of one operation."""

    def __init__(self, policy: RetryPolicy, cancelled: Callable[[], bool]) -> None:
        self._policy = policy
        self._cancelled = cancelled
        self.failures = 0  # since the last progress
        self._deadline = time.monotonic() + policy.retry_for_s

    def progressed(self) -> None:
        """Bytes came: a long transfer may fail as often as it goes on in between."""
        if self.failures:
            self.failures = 0
        self._deadline = time.monotonic() + self._policy.retry_for_s

    def failed(self, error: P2PCacheError) -> None:
        """Sleep before the next try, or raise `error` when there is none."""
        if not error.retryable:
            raise error
        wake = time.monotonic() + self._policy.delay_s(self.failures)
        if wake >= self._deadline:
            raise error
        self.failures += 1
        while (left := wake - time.monotonic()) > 0:
            if self._cancelled():
                raise Abandoned("cancelled while waiting for the origin") from error
            time.sleep(min(left, _NAP_S))


class Retrying(Origin):
    """Any origin, with retries. What it raises has been tried again as long as that made sense."""

    def __init__(self, inner: Origin, policy: RetryPolicy) -> None:
        self.inner = inner
        self.url = inner.url
        self._policy = policy

    @property
    def conditional_put(self) -> bool:
        """As the wrapped origin's."""
        return self._policy.call(lambda: self.inner.conditional_put)

    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        """As `Origin.get`."""
        return self._policy.call(lambda: self.inner.get(key, limit=limit))

    def stat(self, key: str) -> ObjectInfo | None:
        """As `Origin.stat`."""
        return self._policy.call(lambda: self.inner.stat(key))

    def open(
        self, key: str, start: int, length: int, cancelled: Callable[[], bool] = never
    ) -> Body:
        """As `Origin.open`; a body that breaks is asked again from where it broke.

        Nothing is sent before the first `readinto`, which therefore raises what `open` would.
        """
        return _ResumingBody(self.inner, key, start, length, Attempts(self._policy, cancelled))

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        """As `Origin.put`.

        A conditional put whose answer got lost may have happened: when a later try meets a
        conflict with exactly our own bytes, it was us.
        """
        attempt = Attempts(self._policy, never)
        while True:
            try:
                return self.inner.put(key, data, expect=expect)
            except Conflict:
                if not attempt.failures:
                    raise
                version = self._version_of(key, data)
                if version is None:
                    raise
                return version
            except P2PCacheError as error:
                attempt.failed(error)

    def put_file(
        self,
        key: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """As `Origin.put_file`: the origin retries its parts, since `source` is read once."""
        self.inner.put_file(key, source, size, progress=progress)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As `Origin.list`; a listing that breaks starts again and leaves out what was seen."""
        attempt = Attempts(self._policy, never)
        seen: set[str] = set()
        while True:
            try:
                for info in self.inner.list(prefix):
                    if info.key not in seen:
                        seen.add(info.key)
                        attempt.progressed()
                        yield info
                return
            except P2PCacheError as error:
                attempt.failed(error)

    def delete(self, key: str) -> None:
        """As `Origin.delete`."""
        self._policy.call(lambda: self.inner.delete(key))

    def rest(self) -> None:
        """As `Origin.rest`."""
        self.inner.rest()

    def close(self) -> None:
        """As `Origin.close`."""
        self.inner.close()

    def _version_of(self, key: str, data: bytes) -> str | None:
        try:
            found, version = self.get(key, limit=len(data))
        except (NotFound, P2PCacheError):
            return None
        return version if found == data else None


class _ResumingBody(Body):
    def __init__(
        self, origin: Origin, key: str, start: int, length: int, attempts: Attempts
    ) -> None:
        self._origin = origin
        self._key = key
        self._next = start
        self._end = start + length
        self._attempts = attempts
        self._body: Body | None = None

    def readinto(self, buffer: memoryview) -> int:
        while self._next < self._end:
            try:
                if self._body is None:
                    self._body = self._origin.open(self._key, self._next, self._end - self._next)
                count = self._body.readinto(buffer)
            except P2PCacheError as error:
                self.close()
                self._attempts.failed(error)
            else:
                self._next += count
                self._attempts.progressed()
                return count
        return 0

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

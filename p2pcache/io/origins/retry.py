"""The one place of retries: exponential back-off with full jitter (Brooker 2015), until a deadline.

Libraries below retry nothing, so that retries don't multiply. The error says whether a retry makes
sense (`retryable`).
"""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from p2pcache.core import backoff
from p2pcache.errors import Conflict, IntegrityError, NotFound, P2PCacheError
from p2pcache.io.origins.base import (
    Body,
    Expect,
    NoContainer,
    ObjectInfo,
    Origin,
    Readable,
    Renewed,
)

T = TypeVar("T")

BASE_DELAY_S = 0.1  # a load balancer that lost one backend is good again at once
MAX_DELAY_S = 3.0  # a server that restarted is noticed within this time
_NAP_S = 0.1  # how quickly a cancelled caller wakes up


class Abandoned(P2PCacheError):
    """The caller's `cancelled` turned true while we waited for the next try."""


def never() -> bool:
    """The `cancelled` of callers that don't cancel."""
    return False


class RetryPolicy:
    """When to try again, and the outcome of the last try. One per origin; thread-safe, as `random.Random` is."""

    def __init__(self, retry_for_s: float, rng: random.Random | None = None) -> None:
        """Retry for `retry_for_s` seconds after the last progress; 0: never."""
        self.retry_for_s = retry_for_s
        self.trouble: P2PCacheError | None = None  # error of the last try; None: it was answered
        self.troubled_key = ""  # key of that try's object, if it had one
        self._rng = rng if rng is not None else random.Random()

    def call(
        self, action: Callable[[], T], cancelled: Callable[[], bool] = never, key: str = ""
    ) -> T:
        """Call `action` until it succeeds, fails for good or the time is over.

        Args:
            action: one try.
            cancelled: called between two tries.
            key: of the object of the action, if it has one.

        Raises:
            Abandoned: `cancelled` turned true between two tries.
            P2PCacheError: what `action` raised last.
        """
        attempt = Attempts(self, cancelled, key)
        while True:
            try:
                result = action()
            except P2PCacheError as error:
                attempt.failed(error)
            else:
                self.answered()
                return result

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failure number `attempt` (from 0): full jitter."""
        return self._rng.uniform(0, backoff.pause_s(BASE_DELAY_S, MAX_DELAY_S, attempt))

    def answered(self) -> None:
        """A try succeeded."""
        if self.trouble is not None:
            self.trouble, self.troubled_key = None, ""

    def failed(self, error: P2PCacheError, key: str) -> None:
        """A try failed. That an object is missing, or not as expected, counts as an answer."""
        about_one = isinstance(error, NotFound | Conflict | IntegrityError)
        if about_one and not isinstance(error, NoContainer):
            self.answered()
        else:
            self.trouble, self.troubled_key = type(error)(str(error)), key


class Attempts:
    """The tries of one operation."""

    def __init__(
        self, policy: RetryPolicy, cancelled: Callable[[], bool] = never, key: str = ""
    ) -> None:
        self._policy = policy
        self._cancelled = cancelled
        self._key = key
        self.failures = 0  # since the last progress
        self._deadline = time.monotonic() + policy.retry_for_s

    def progressed(self) -> None:
        """Bytes came: a long transfer may fail any number of times if it goes on in between."""
        if self.failures:
            self.failures = 0
        self._policy.answered()
        self._deadline = time.monotonic() + self._policy.retry_for_s

    def failed(self, error: P2PCacheError) -> None:
        """Sleep before the next try, or raise `error` when there is none."""
        if isinstance(error, Renewed):  # the origin bounds how often
            return
        self._policy.failed(error, self._key)
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
    """Any origin, with retries. Its errors are final: all retries that made sense were made."""

    def __init__(self, inner: Origin, policy: RetryPolicy) -> None:
        self.inner = inner
        self.url = inner.url
        self._policy = policy

    @property
    def trouble(self) -> P2PCacheError | None:
        """Error of the last try of any operation, also during its retries; None: it succeeded."""
        return self._policy.trouble

    def prove(self, key: str) -> None:
        """Find out whether the storage answers; `trouble` stays as it is.

        Raises:
            P2PCacheError: as `get`.
        """
        RetryPolicy(self._policy.retry_for_s).call(lambda: self.inner.get(key, limit=0))

    def ask_again(self, otherwise: str) -> None:
        """If there is trouble, ask once for the troubled key, or else for `otherwise`, and update `trouble`."""
        key = self._policy.troubled_key or otherwise
        if self._policy.trouble is None:
            return
        try:
            self.inner.stat(key)
        except Renewed:
            return  # next time
        except P2PCacheError as error:
            self._policy.failed(error, key)
        else:
            self._policy.answered()

    @property
    def conditional_put(self) -> bool:
        """As the wrapped origin's."""
        return self._policy.call(lambda: self.inner.conditional_put)

    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        """As `Origin.get`."""
        return self._policy.call(lambda: self.inner.get(key, limit=limit), key=key)

    def stat(self, key: str) -> ObjectInfo | None:
        """As `Origin.stat`."""
        return self._policy.call(lambda: self.inner.stat(key), key=key)

    def open(
        self, key: str, start: int, length: int, cancelled: Callable[[], bool] = never
    ) -> Body:
        """As `Origin.open`; a body that breaks is asked again from where it broke.

        Nothing is sent before the first `readinto`, which therefore raises what `open` would.
        """
        attempts = Attempts(self._policy, cancelled, key)
        return ResumingBody(partial(self.inner.open, key), start, length, attempts)

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        """As `Origin.put`.

        A conditional put whose answer got lost may have happened: when a later try meets a
        conflict with exactly our own bytes, it was us.
        """
        attempt = Attempts(self._policy, key=key)
        while True:
            try:
                version = self.inner.put(key, data, expect=expect)
                self._policy.answered()
            except Conflict:
                if not attempt.failures:
                    raise
                found = self._version_of(key, data)
                if found is None:
                    raise
                return found
            except P2PCacheError as error:
                attempt.failed(error)
            else:
                return version

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
        """As `Origin.list`; a listing that breaks starts again, without the keys that were yielded."""
        attempt = Attempts(self._policy)
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
        self._policy.call(lambda: self.inner.delete(key), key=key)

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


class ResumingBody(Body):
    """A body that is asked for again from where it broke. Nothing is sent before the first `readinto`."""

    def __init__(
        self, open_range: Callable[[int, int], Body], start: int, length: int, attempts: Attempts
    ) -> None:
        """`open_range`: from an offset and a length to a body; one try."""
        self._open_range = open_range
        self._next = start
        self._end = start + length
        self._attempts = attempts
        self._body: Body | None = None

    def readinto(self, buffer: memoryview) -> int:
        """As `Body.readinto`."""
        while self._next < self._end:
            try:
                if self._body is None:
                    self._body = self._open_range(self._next, self._end - self._next)
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
        """As `Body.close`."""
        if self._body is not None:
            self._body.close()
            self._body = None

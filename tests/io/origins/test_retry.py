"""Retries: how often, how long, and what a lost answer means."""

import random
import time
from collections.abc import Callable, Iterator

import pytest

from p2pcache.errors import Conflict, NotFound, OriginUnavailable, P2PCacheError
from p2pcache.io.origins.base import ABSENT, Body, Expect, ObjectInfo, Origin, Readable
from p2pcache.io.origins.retry import MAX_DELAY_S, Abandoned, Retrying, RetryPolicy


class Scripted(Origin):
    """One object in memory; each call first takes the next item of the script, and raises it."""

    url = "mem://x"

    def __init__(self, *script: P2PCacheError | None, data: bytes = b"") -> None:
        self.script = list(script)
        self.data: bytes | None = data or None
        self.calls = 0
        self.ranges: list[tuple[int, int]] = []
        self.lose_answer = False

    def _step(self) -> None:
        self.calls += 1
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error

    @property
    def conditional_put(self) -> bool:
        self._step()
        return True

    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        self._step()
        if self.data is None:
            raise NotFound(key)
        return self.data, str(hash(self.data))

    def stat(self, key: str) -> ObjectInfo | None:
        self._step()
        return None if self.data is None else ObjectInfo(key, len(self.data), "")

    def open(self, key: str, start: int, length: int) -> Body:
        self._step()
        self.ranges.append((start, length))
        assert self.data is not None
        return ScriptedBody(self, self.data[start : start + length])

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        lost = self.script and isinstance(self.script[0], OriginUnavailable) and self.lose_answer
        if lost:
            self.data = data
        self._step()
        if expect is ABSENT and self.data is not None:
            raise Conflict(key)
        self.data = data
        return str(hash(data))

    def put_file(
        self,
        key: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._step()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._step()
        for key in "ab":
            yield ObjectInfo(key, 0, "")
        self._step()
        yield ObjectInfo("c", 0, "")

    def delete(self, key: str) -> None:
        self._step()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass


class ScriptedBody(Body):
    """Ten bytes at a time, a step of the script before each."""

    def __init__(self, origin: Scripted, data: bytes) -> None:
        self.origin = origin
        self.data = data

    def readinto(self, buffer: memoryview) -> int:
        self.origin._step()
        piece, self.data = self.data[:10], self.data[10:]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        pass


DOWN = OriginUnavailable("down")


def quick(inner: Origin, retry_for_s: float = 5.0) -> Retrying:
    """With delays of almost nothing."""
    policy = RetryPolicy(retry_for_s)
    policy.delay_s = lambda attempt: 0.001  # type: ignore[method-assign]
    return Retrying(inner, policy)


def test_only_retryable_errors_are_retried() -> None:
    inner = Scripted(DOWN, DOWN, None, data=b"x")
    assert quick(inner).get("k", limit=1)[0] == b"x"
    assert inner.calls == 3
    inner = Scripted(NotFound("k"))
    with pytest.raises(NotFound):
        quick(inner).get("k", limit=1)
    assert inner.calls == 1


def test_gives_up_at_the_deadline() -> None:
    inner = Scripted(*[DOWN] * 10_000)
    began = time.monotonic()
    with pytest.raises(OriginUnavailable):
        quick(inner, 0.3).stat("k")
    assert 0.15 < time.monotonic() - began < 30
    assert inner.calls > 3


def test_zero_means_never() -> None:
    inner = Scripted(DOWN)
    with pytest.raises(OriginUnavailable):
        Retrying(inner, RetryPolicy(0)).delete("k")
    assert inner.calls == 1


def test_delays_grow_with_full_jitter_up_to_a_cap() -> None:
    policy = RetryPolicy(1, random.Random(7))
    for attempt, top in ((0, 0.1), (1, 0.2), (3, 0.8), (50, MAX_DELAY_S)):
        delays = [policy.delay_s(attempt) for _ in range(300)]
        assert 0 <= min(delays) < 0.1 * top
        assert 0.9 * top < max(delays) <= top


def test_a_body_goes_on_where_it_broke() -> None:
    data = bytes(range(100))
    # open, 10 bytes, 10 bytes, broken; open fails; open, rest
    inner = Scripted(None, None, None, DOWN, DOWN, data=data)
    buffer, found = memoryview(bytearray(64)), b""
    with quick(inner).open("k", 5, 90) as body:
        while count := body.readinto(buffer):
            found += buffer[:count]
    assert found == data[5:95]
    assert inner.ranges == [(5, 90), (25, 70)]


def test_progress_renews_the_deadline() -> None:
    inner = Scripted(*[None, None, DOWN] * 9, data=bytes(100))  # open, 10 bytes, broken; nine times
    origin = quick(inner, 2.0)  # all of it takes longer; one pause of a busy machine doesn't
    buffer = memoryview(bytearray(10))
    with origin.open("k", 0, 100) as body:
        for _ in range(10):
            assert body.readinto(buffer) == 10
            time.sleep(0.25)
        assert body.readinto(buffer) == 0


def test_cancelled_while_waiting() -> None:
    policy = RetryPolicy(60)
    policy.delay_s = lambda attempt: 30.0  # type: ignore[method-assign]
    inner = Scripted(*[DOWN] * 100)
    cancelled_at = time.monotonic() + 0.1
    body = Retrying(inner, policy).open("k", 0, 1, lambda: time.monotonic() > cancelled_at)
    with pytest.raises(Abandoned):
        body.readinto(memoryview(bytearray(1)))
    assert time.monotonic() - cancelled_at < 20


def test_put_whose_answer_was_lost_is_not_a_conflict() -> None:
    inner = Scripted(DOWN)
    inner.lose_answer = True
    assert quick(inner).put("k", b"mine", expect=ABSENT) == str(hash(b"mine"))


def test_conflict_after_a_lost_request_is_one() -> None:
    inner = Scripted(DOWN, data=b"theirs")
    with pytest.raises(Conflict):
        quick(inner).put("k", b"mine", expect=ABSENT)


def test_first_conflict_is_believed() -> None:
    inner = Scripted(data=b"mine")
    with pytest.raises(Conflict):
        quick(inner).put("k", b"mine", expect=ABSENT)


def test_listing_that_breaks_tells_nothing_twice() -> None:
    inner = Scripted(None, DOWN)
    assert [i.key for i in quick(inner).list("")] == ["a", "b", "c"]


def test_put_file_is_the_origins_own_business() -> None:
    inner = Scripted(DOWN)
    with pytest.raises(OriginUnavailable):
        quick(inner).put_file("k", None, 0)  # type: ignore[arg-type]
    assert inner.calls == 1

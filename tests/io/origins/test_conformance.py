"""What every origin promises. A new kind of origin joins by an entry in conftest.ORIGINS."""

import io
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from p2pcache.core.format.keep_record import KeepRecord
from p2pcache.errors import Conflict, IntegrityError, NotFound, OriginChanged, UsageError
from p2pcache.ids import Ref
from p2pcache.io.intents.in_origin import Intents
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.base import ABSENT, Body

BAD_KEYS = [
    "", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", ".hidden", "a/.lock", "a\0b", "ä",
    "a b", "a\nb", "a%2fb", "x" * 1000,
]  # fmt: skip
PART = 5 << 20


def read_all(body: Body, size: int, step: int) -> bytes:
    """Everything, through a small buffer."""
    buffer = memoryview(bytearray(step))
    found = bytearray()
    with body:
        while count := body.readinto(buffer):
            found += buffer[:count]
            assert len(found) <= size
        assert body.readinto(buffer) == 0  # and it stays at its end
    return bytes(found)


def test_put_and_get(origin: Retrying) -> None:
    first = origin.put("a/b/c", b"one")
    assert origin.get("a/b/c", limit=3) == (b"one", first)
    second = origin.put("a/b/c", b"other")
    assert second != first
    assert origin.get("a/b/c", limit=100) == (b"other", second)
    info = origin.stat("a/b/c")
    assert info is not None
    assert info == ("a/b/c", 5, second)


def test_empty_object(origin: Retrying) -> None:
    version = origin.put("empty", b"")
    assert origin.get("empty", limit=0) == (b"", version)


def test_missing(origin: Retrying) -> None:
    with pytest.raises(NotFound, match="a/b"):
        origin.get("a/b", limit=10)
    with pytest.raises(NotFound), origin.open("a/b", 0, 1) as body:
        body.readinto(memoryview(bytearray(1)))
    assert origin.stat("a/b") is None
    assert list(origin.list("a/")) == []
    origin.delete("a/b")


def test_limit(origin: Retrying) -> None:
    origin.put("large", bytes(1000))
    with pytest.raises(IntegrityError, match="1000 bytes"):
        origin.get("large", limit=999)


def test_bad_keys(origin: Retrying) -> None:
    buffer = memoryview(bytearray(1))
    for key in BAD_KEYS:
        actions: list[Callable[[], object]] = [
            partial(origin.put, key, b"x"),
            partial(origin.get, key, limit=1),
            partial(origin.stat, key),
            partial(origin.open(key, 0, 1).readinto, buffer),
            partial(origin.put_file, key, io.BytesIO(b"x"), 1),
            partial(origin.delete, key),
            partial(next, origin.list(key + "/"), None),
        ]
        for action in actions:
            with pytest.raises(UsageError):
                action()


def test_conditional_put(origin: Retrying) -> None:
    assert origin.conditional_put
    first = origin.put("tag", b"1", expect=ABSENT)
    with pytest.raises(Conflict):
        origin.put("tag", b"2", expect=ABSENT)
    second = origin.put("tag", b"2", expect=first)
    with pytest.raises(Conflict):
        origin.put("tag", b"3", expect=first)
    assert origin.get("tag", limit=10) == (b"2", second)
    origin.delete("tag")
    with pytest.raises(Conflict):
        origin.put("tag", b"3", expect=second)
    origin.put("tag", b"4", expect=ABSENT)


def test_probe_leaves_nothing(origin: Retrying) -> None:
    assert origin.conditional_put
    assert list(origin.list("")) == []


def test_one_creator_wins(origin: Retrying) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> int | None:
        start.wait()
        try:
            origin.put("lock", str(number).encode(), expect=ABSENT)
        except Conflict:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(create, range(8)) if n is not None]
    assert len(winners) == 1
    assert origin.get("lock", limit=10)[0] == str(winners[0]).encode()


def test_compare_and_swap_loses_no_update(origin: Retrying) -> None:
    origin.put("count", b"0")

    def increment(_: int) -> None:
        while True:
            data, version = origin.get("count", limit=10)
            try:
                origin.put("count", str(int(data) + 1).encode(), expect=version)
            except Conflict:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(20)))
    assert origin.get("count", limit=10)[0] == b"20"


def test_ranges(origin: Retrying) -> None:
    data = random.Random(1).randbytes(300_000)
    origin.put("blob", data)
    for start, length in (
        (0, 300_000), (0, 1), (299_999, 1), (12_345, 100_001), (1, 299_999),
    ):  # fmt: skip
        found = read_all(origin.open("blob", start, length), length, 7_777)
        assert found == data[start : start + length]


def test_range_beyond_the_end(origin: Retrying) -> None:
    origin.put("blob", bytes(100))
    for start, length in ((0, 101), (50, 51), (100, 1), (5000, 10)):
        with pytest.raises(OriginChanged, match="push"):
            read_all(origin.open("blob", start, length), length, 1000)


def test_a_body_closed_early_disturbs_no_other(origin: Retrying) -> None:
    data = random.Random(2).randbytes(2_000_000)
    origin.put("blob", data)
    for _ in range(5):
        with origin.open("blob", 0, len(data)) as body:
            assert body.readinto(memoryview(bytearray(1000))) > 0
        assert read_all(origin.open("blob", 7, 1000), 1000, 1000) == data[7:1007]


def test_readers_in_parallel(origin: Retrying) -> None:
    data = random.Random(3).randbytes(3_000_000)
    origin.put("blob", data)

    def read(i: int) -> bool:
        start = i * 100_000
        return (
            read_all(origin.open("blob", start, 100_000), 100_000, 65_536)
            == data[start : start + 100_000]
        )

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read, range(30)))


def test_put_file(origin: Retrying) -> None:
    for size in (1, PART - 1, PART, PART + 1, 2 * PART + 17):
        data = random.Random(size).randbytes(size)
        told: list[int] = []
        origin.put_file("blobs/x", io.BytesIO(data), size, progress=told.append)
        assert sum(told) == size
        assert read_all(origin.open("blobs/x", 0, size), size, 1 << 20) == data


@pytest.mark.slow
def test_put_file_over_64_mib(origin: Retrying) -> None:
    piece = os.urandom(1 << 20)
    count = 70

    class Source:
        def __init__(self) -> None:
            self.left = count * len(piece)

        def readinto(self, buffer: memoryview, /) -> int:
            count = min(len(buffer), self.left, len(piece))  # short reads are allowed
            buffer[:count] = piece[:count]
            self.left -= count
            return count

    origin.put_file("blobs/x", Source(), count * len(piece))
    found = read_all(origin.open("blobs/x", 0, count << 20), count << 20, 1 << 20)
    assert found == piece * count


class Broken:
    """A source that fails on its way."""

    def __init__(self) -> None:
        self.given = 0

    def readinto(self, buffer: memoryview, /) -> int:
        if self.given >= PART:
            raise IntegrityError("the file changed")
        count = min(len(buffer), 1 << 20)
        self.given += count
        return count


def test_failed_upload_shows_nothing(origin: Retrying) -> None:
    origin.put("blobs/old", b"old")
    for key in ("blobs/new", "blobs/old"):
        with pytest.raises(IntegrityError, match="the file changed"):
            origin.put_file(key, Broken(), 3 * PART)
    assert [(i.key, i.size) for i in origin.list("")] == [("blobs/old", 3)]


def test_short_source(origin: Retrying) -> None:
    for size in (100, 2 * PART + 10):
        with pytest.raises(IntegrityError, match="ended"):
            origin.put_file("blobs/x", io.BytesIO(bytes(size - 1)), size)
    assert list(origin.list("")) == []


def test_list(origin: Retrying) -> None:
    keys = ["a/b-1", "a/b/c", "a/b0", "aa/x", "b", "b@x/y"]
    for key in keys:
        origin.put(key, key.encode())
    assert sorted(i.key for i in origin.list("")) == keys
    assert sorted(i.key for i in origin.list("a/")) == ["a/b-1", "a/b/c", "a/b0"]
    assert [i.key for i in origin.list("a/b/")] == ["a/b/c"]
    assert list(origin.list("nothing/")) == []
    listed = list(origin.list("b@x/"))
    assert listed == [origin.stat("b@x/y")]
    with pytest.raises(UsageError, match="slash"):
        list(origin.list("a"))


@pytest.mark.slow
def test_list_more_than_a_page(origin: Retrying) -> None:
    keys = sorted(f"many/{i}" for i in range(1_050))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: origin.put(key, b""), keys))
    assert sorted(i.key for i in origin.list("many/")) == keys


def test_delete(origin: Retrying) -> None:
    origin.put("a/x", b"1")
    origin.put("a/y", b"1")
    origin.delete("a/x")
    assert origin.stat("a/x") is None
    origin.delete("a/x")
    assert [i.key for i in origin.list("")] == ["a/y"]


def test_readers_see_old_or_new_never_a_mixture(origin: Retrying) -> None:
    stop = threading.Event()
    origin.put("tag", b"a" * 1000)

    def write() -> None:
        for i in range(60):
            origin.put("tag", (b"a", b"b")[i % 2] * 1000)
        stop.set()

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(write)
        while not stop.is_set():
            assert origin.get("tag", limit=1000)[0] in (b"a" * 1000, b"b" * 1000)
        writer.result()


def test_a_running_read_goes_on_when_the_origin_rests(origin: Retrying) -> None:
    data = random.Random(3).randbytes(PART)
    origin.put("blob", data)
    body = origin.open("blob", 0, len(data))
    head = memoryview(bytearray(1000))
    count = body.readinto(head)
    origin.rest()
    assert bytes(head[:count]) + read_all(body, len(data), 100_000) == data
    assert origin.get("blob", limit=len(data))[0] == data, "the next request connects anew"


# -- what is built on conditional puts ---------------------------------------------------------------


def test_two_trackers_change_one_intent(origin: Retrying) -> None:
    """Each change is made of the record that it replaces, and none is lost."""
    ref = Ref.parse("team/llama:v1")

    def one_more(before: KeepRecord) -> KeepRecord:
        return KeepRecord(before.generation + 1, before.copies + 1)

    with ThreadPoolExecutor(2) as trackers:
        list(trackers.map(lambda _: Intents(origin).change_keep(ref, one_more), range(6)))
    intents = Intents(origin)
    assert intents.read_all().keeps == {ref: KeepRecord(6, 6)}
    over = intents.change_keep(ref, lambda before: KeepRecord(before.generation + 1))
    assert not over.lasts
    assert intents.read_all().keeps == {}
    assert intents.change_keep(ref, one_more) == KeepRecord(8, 1), "its generation never falls"

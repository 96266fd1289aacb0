"""Pushes of many small files: what storage has is listed, not asked about file by file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, make_file, make_manifest
from p2pcache.errors import NotAllowed
from p2pcache.io.origins import Retrying, push
from p2pcache.io.origins.base import ObjectInfo
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.push import missing_blobs
from p2pcache.io.origins.repo import OriginRepo, blob_key
from p2pcache.io.origins.retry import RetryPolicy

COUNT = 300


class Counting(FileOrigin):
    """Counts what is asked, and may refuse to list."""

    asked = listed = 0
    may_list = True

    def stat(self, key: str) -> ObjectInfo | None:
        self.asked += 1
        return super().stat(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if not self.may_list:
            raise NotAllowed("s3:ListBucket is refused")
        for info in super().list(prefix):
            self.listed += 1
            yield info


@pytest.fixture
def origin(tmp_path: Path) -> Counting:
    return Counting(tmp_path.as_uri())


@pytest.fixture
def repo(origin: Counting) -> OriginRepo:
    return OriginRepo(Retrying(origin, RetryPolicy(0)))


def layout(count: int = COUNT) -> Layout:
    files = (make_file(f"f{n}", [Chunk(n % 7 + 1, n.to_bytes(32, "little"))]) for n in range(count))
    return Layout(make_manifest(files))


def store(origin: Counting, wanted: Layout, which: Callable[[int], bool]) -> None:
    for number, blob in enumerate(wanted.blobs):
        if which(number):
            origin.put(blob_key(blob.id), bytes(blob.size))
    origin.asked = origin.listed = 0


def test_a_fresh_storage_is_asked_once(origin: Counting, repo: OriginRepo) -> None:
    assert missing_blobs(repo, layout()) == list(range(COUNT))
    assert origin.asked == 0


def test_stored_blobs_are_seen_and_torn_ones_are_missing(
    origin: Counting, repo: OriginRepo
) -> None:
    wanted = layout()
    store(origin, wanted, lambda number: number % 3 > 0)
    origin.put(blob_key(wanted.blobs[1].id), b"longer than it should be")
    assert missing_blobs(repo, wanted) == sorted({1, *range(0, COUNT, 3)})
    assert origin.asked == 0


def test_a_storage_with_far_more_than_that_is_not_listed_to_its_end(
    origin: Counting, repo: OriginRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = layout()
    store(origin, wanted, lambda number: number % 2 > 0)
    monkeypatch.setattr(push, "_LIST_KEYS_EACH", 0.1)
    assert missing_blobs(repo, wanted) == list(range(0, COUNT, 2))
    assert origin.listed == 0.1 * COUNT + 1
    assert origin.asked == COUNT - 0.1 * COUNT, "the listed ones need no question"


def test_a_client_that_may_not_list_asks_for_each_blob(origin: Counting, repo: OriginRepo) -> None:
    wanted = layout()
    store(origin, wanted, lambda number: number < 10)
    origin.may_list = False
    assert missing_blobs(repo, wanted) == list(range(10, COUNT))
    assert origin.asked == COUNT


def test_a_few_blobs_are_asked_for(origin: Counting, repo: OriginRepo) -> None:
    assert missing_blobs(repo, layout(3)) == [0, 1, 2]
    assert (origin.asked, origin.listed) == (3, 0)

"""Tags, manifests, blobs and pushes on a directory origin."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import make_file, make_manifest
from p2pcache.core.format.tag_record import MAX_GENERATION, TagRecord, decode_tag, encode_tag
from p2pcache.errors import Conflict, IntegrityError, InvalidManifest, NotFound, UsageError
from p2pcache.ids import Ref
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.base import Expect
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.repo import OriginRepo, blob_key, manifest_key, tag_key
from p2pcache.io.origins.retry import RetryPolicy
from tests.io.models.store_kit import Model, model

REF = Ref.parse("team/llama:v1")
A, B = "a" * 64, "b" * 64


class Careless(FileOrigin):
    """A store that ignores conditional writes, as some do."""

    @property
    def conditional_put(self) -> bool:
        return False

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        assert expect is None
        return super().put(key, data)


@pytest.fixture
def repo(tmp_path: Path) -> OriginRepo:
    return OriginRepo(Retrying(FileOrigin(tmp_path.as_uri()), RetryPolicy(0)))


def files_of(wanted: Model, folder: Path) -> Callable[[int], int]:
    """`open_blob` over the model's files, written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[int, Path] = {}
    for path, data in wanted.files.items():
        number = wanted.layout.blob_of_file[path]
        paths[number] = folder / str(number)
        paths[number].write_bytes(data)
    return lambda number: os.open(paths[number], os.O_RDONLY)


def test_tag_generations(repo: OriginRepo) -> None:
    with pytest.raises(NotFound, match="team/llama:v1"):
        repo.get_tag(REF)
    assert repo.put_tag(REF, A) == TagRecord(A, 1, "")
    assert repo.put_tag(REF, A) == TagRecord(A, 1, "")  # no change, no generation
    assert repo.put_tag(REF, B, expect_generation=1) == TagRecord(B, 2, A)
    assert repo.get_tag(REF) == TagRecord(B, 2, A)


def test_tag_moved_meanwhile(repo: OriginRepo) -> None:
    repo.put_tag(REF, A, expect_generation=0)
    with pytest.raises(Conflict, match="generation 1"):
        repo.put_tag(REF, B, expect_generation=0)
    with pytest.raises(Conflict):
        repo.put_tag(REF, B, expect_generation=7)
    assert repo.get_tag(REF).digest == A


def test_a_deleted_tag_goes_on_counting(repo: OriginRepo) -> None:
    repo.put_tag(REF, A)
    repo.put_tag(REF, B)
    repo.delete_tag(REF)
    repo.delete_tag(REF)
    with pytest.raises(NotFound):
        repo.get_tag(REF)
    assert list(repo.list_tags()) == []
    assert repo.put_tag(REF, A) == TagRecord(A, 4, "")


def test_many_writers_of_one_tag(repo: OriginRepo) -> None:
    digests = [f"{i:064x}" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda d: repo.put_tag(REF, d), digests))
    assert sorted(r.generation for r in records) == list(range(1, 9))
    by_generation = {r.generation: r for r in records}
    assert all(by_generation[g].previous == by_generation[g - 1].digest for g in range(2, 9))


def test_list_tags(repo: OriginRepo) -> None:
    refs = [Ref.parse(t) for t in ("a/x:1", "a/x:2", "a/y:1", "b/x:1")]
    for ref in refs:
        repo.put_tag(ref, A)
    repo.origin.put("p2pcache/v1/tags/stray", b"what?")
    assert sorted(ref for ref, _ in repo.list_tags()) == refs
    assert sorted(ref for ref, _ in repo.list_tags("a")) == refs[:3]
    assert sorted(ref for ref, _ in repo.list_tags("a", "x")) == refs[:2]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[1]", b"\xff", b'{"digest":"x","generation":1,"previous":""}',
        b'{"digest":"' + b"a" * 64 + b'","generation":0,"previous":""}',
        b'{"digest":"' + b"A" * 64 + b'","generation":1,"previous":""}',
        b'{"digest":"' + b"a" * 64 + b'","generation":99999999999999999999,"previous":""}',
        b'{"digest":"' + b"a" * 64 + b'","generation":1,"previous":"","url":"http://evil"}',
        b"[" * 4000, b"x" * 5000,
    ],
)  # fmt: skip
def test_hostile_tag_records(repo: OriginRepo, data: bytes) -> None:
    repo.origin.put(tag_key(REF), data)
    with pytest.raises(IntegrityError):
        repo.get_tag(REF)


def test_a_tag_at_the_last_generation_stays_readable(repo: OriginRepo) -> None:
    last = TagRecord(A, MAX_GENERATION)
    repo.origin.put(tag_key(REF), encode_tag(last))
    for change in (lambda: repo.put_tag(REF, B), lambda: repo.delete_tag(REF)):
        with pytest.raises(IntegrityError, match="delete this one's record in the storage"):
            change()
        assert repo.get_tag(REF) == last
    assert repo.put_tag(REF, A) == last  # it means that already


def test_tag_bytes_are_stable() -> None:
    record = TagRecord(A, 3, B)
    assert encode_tag(record) == (
        b'{"digest":"' + A.encode() + b'","generation":3,"previous":"' + B.encode() + b'"}'
    )
    assert decode_tag(encode_tag(record)) == record


def test_store_without_conditional_put(tmp_path: Path) -> None:
    repo = OriginRepo(Retrying(Careless(tmp_path.as_uri()), RetryPolicy(0)))
    with pytest.raises(UsageError, match="tracker"):
        repo.put_tag(REF, A)
    assert repo.put_tag(REF, A, sole_writer=True).generation == 1
    assert repo.put_tag(REF, B, sole_writer=True).generation == 2
    with pytest.raises(Conflict):
        repo.put_tag(REF, A, expect_generation=1, sole_writer=True)


def test_a_push_that_could_not_move_the_tag_uploads_nothing(tmp_path: Path) -> None:
    repo = OriginRepo(Retrying(Careless(tmp_path.as_uri()), RetryPolicy(0)))
    layout = Layout(make_manifest([make_file("a", [])]))
    with pytest.raises(UsageError, match="tracker"):
        repo.push(layout, REF, open_blob=lambda _: -1)
    assert list(tmp_path.rglob("manifests/*")) == []


def test_manifests(repo: OriginRepo) -> None:
    wanted = model()
    with pytest.raises(
        NotFound, match=f"no manifest blake3:{wanted.digest}; .*push the model again"
    ):
        repo.get_manifest(wanted.digest)
    repo.put_manifest(wanted.digest, wanted.encoded)
    assert repo.get_manifest(wanted.digest) == wanted.encoded
    repo.origin.put(manifest_key(wanted.digest), wanted.encoded[:-1])
    with pytest.raises(InvalidManifest, match="push"):
        repo.get_manifest(wanted.digest)
    for bad in ("../../etc/passwd", "A" * 64, "a" * 63):
        with pytest.raises(UsageError):
            repo.get_manifest(bad)
        with pytest.raises(UsageError):
            repo.has_blob(bad, 1)


def test_push(repo: OriginRepo, tmp_path: Path) -> None:
    wanted = model()
    told: list[int] = []
    open_blob = files_of(wanted, tmp_path / "src")
    result = repo.push(wanted.layout, REF, open_blob=open_blob, on_bytes=told.append)
    distinct = sum(b.size for b in wanted.layout.blobs)
    assert result == (wanted.digest, 1, distinct, len(wanted.layout.blobs))
    assert sum(told) == distinct
    assert repo.get_tag(REF).digest == wanted.digest
    assert repo.get_manifest(wanted.digest) == wanted.encoded
    for path, data in wanted.files.items():
        blob = wanted.layout.blobs[wanted.layout.blob_of_file[path]]
        assert repo.origin.get(blob_key(blob.id), limit=1 << 20)[0] == data


def test_second_push_uploads_nothing(repo: OriginRepo, tmp_path: Path) -> None:
    wanted = model()
    repo.push(wanted.layout, REF, open_blob=files_of(wanted, tmp_path / "src"))
    told: list[int] = []

    def never(number: int) -> int:
        raise AssertionError(number)

    result = repo.push(wanted.layout, REF, open_blob=never, on_bytes=told.append)
    assert result == (wanted.digest, 1, 0, 0)
    assert sum(told) == sum(b.size for b in wanted.layout.blobs)


def test_blob_of_the_wrong_size_is_uploaded_again(repo: OriginRepo, tmp_path: Path) -> None:
    wanted = model()
    open_blob = files_of(wanted, tmp_path / "src")
    repo.push(wanted.layout, REF, open_blob=open_blob)
    blob = max(wanted.layout.blobs, key=lambda b: b.size)
    repo.origin.put(blob_key(blob.id), b"torn")
    assert repo.push(wanted.layout, REF, open_blob=open_blob).blobs_uploaded == 1
    assert repo.has_blob(blob.id, blob.size)


@pytest.mark.parametrize("damage", ["flip", "shorten"])
def test_file_changed_since_it_was_indexed(repo: OriginRepo, tmp_path: Path, damage: str) -> None:
    wanted = model()
    open_blob = files_of(wanted, tmp_path / "src")
    blob = max(wanted.layout.blobs, key=lambda b: b.size)
    victim = tmp_path / "src" / str(wanted.layout.blobs.index(blob))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data if damage == "flip" else data[:-1])
    with pytest.raises(IntegrityError, match="changed"):
        repo.push(wanted.layout, REF, open_blob=open_blob)
    assert not repo.has_blob(blob.id, blob.size)
    assert not repo.has_manifest(wanted.digest)
    with pytest.raises(NotFound):
        repo.get_tag(REF)


def test_tag_that_moves_during_a_push(repo: OriginRepo, tmp_path: Path) -> None:
    wanted = model()
    plain = files_of(wanted, tmp_path / "src")

    def slow(number: int) -> int:
        repo.put_tag(REF, A)  # somebody else is faster
        return plain(number)

    with pytest.raises(Conflict, match="--force"):
        repo.push(wanted.layout, REF, open_blob=slow)
    assert repo.get_tag(REF).digest == A
    assert repo.push(wanted.layout, REF, open_blob=plain, force=True).generation == 2

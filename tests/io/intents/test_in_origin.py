"""Intents at an origin: written by comparison, read as a whole, and never lost to a bad record."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from p2pcache.core.format.keep_record import DrainRecord, KeepRecord, decode_record, encode_record
from p2pcache.errors import IntegrityError
from p2pcache.ids import Ref
from p2pcache.io.intents.in_origin import Intents, drain_key, keep_key
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.retry import RetryPolicy

REF = Ref.parse("team/llama:v1")


@pytest.fixture
def origin(tmp_path: Path) -> Retrying:
    return Retrying(FileOrigin(tmp_path.as_uri()), RetryPolicy(0))


def raised(before: KeepRecord) -> KeepRecord:
    return msgspec.structs.replace(
        before, generation=before.generation + 1, copies=before.copies + 1
    )


def test_what_is_written_is_read_until_it_is_over(origin: Retrying) -> None:
    intents = Intents(origin)
    assert intents.read_all() == ({}, {}, {}, set())
    assert intents.change_keep(REF, raised) == KeepRecord(1, 1)
    drain = DrainRecord(1, draining=True, name="gpu-01")
    intents.change_drain(77, lambda _: drain)
    assert intents.read_all() == ({REF: KeepRecord(1, 1)}, {77: drain}, {}, set())
    intents.change_keep(REF, lambda b: KeepRecord(b.generation + 1))
    intents.change_drain(77, lambda b: DrainRecord(b.generation + 1))
    assert intents.read_all() == ({}, {}, {}, {keep_key(REF), drain_key(77)})
    assert intents.change_keep(REF, raised).generation == 3, "generations never fall"


def test_writers_at_once_lose_no_change(origin: Retrying) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: Intents(origin).change_keep(REF, raised), range(16)))
    assert Intents(origin).read_all().keeps == {REF: KeepRecord(16, 16)}


def test_no_change_writes_nothing(origin: Retrying) -> None:
    intents = Intents(origin)
    intents.change_keep(REF, raised)
    version = origin.get(keep_key(REF), limit=9999)[1]
    intents.change_keep(REF, lambda before: before)
    assert origin.get(keep_key(REF), limit=9999)[1] == version


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"generation":0}', b'{"generation":1,"copies":-1}', b'{"generation":"x"}']
)  # fmt: skip
def test_a_bad_record_is_told_and_spoils_no_other(origin: Retrying, data: bytes) -> None:
    intents = Intents(origin)
    intents.change_keep(REF, raised)
    bad = keep_key(Ref.parse("team/other:v1"))
    origin.put(bad, data)
    found = intents.read_all()
    assert found.keeps == {REF: KeepRecord(1, 1)}
    assert list(found.bad) == [bad]
    with pytest.raises(IntegrityError, match="delete that object"):
        intents.change_keep(Ref.parse("team/other:v1"), raised)


def test_foreign_objects_are_passed_over(origin: Retrying) -> None:
    origin.put("p2pcache/v1/intent/keep/README", b"?")
    origin.put("p2pcache/v1/intent/keep/a/b/c/d", b"?")
    origin.put("p2pcache/v1/intent/drain/not-a-node", b"?")
    origin.put(drain_key(5), encode_record(DrainRecord(1, draining=True)))
    assert Intents(origin).read_all() == ({}, {5: DrainRecord(1, draining=True)}, {}, set())


def test_records_of_a_later_release_are_read() -> None:
    later = b'{"generation":3,"copies":2,"colour":"blue"}'
    assert decode_record(later, KeepRecord) == KeepRecord(3, 2)


def test_storage_without_conditional_writes_takes_the_word_of_the_one_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written by the active tracker alone, one change after the other, as tags are there."""
    monkeypatch.setattr(FileOrigin, "conditional_put", property(lambda _: False))
    given: list[str | None] = []
    put = FileOrigin.put

    def noted(self: FileOrigin, key: str, data: bytes, *, expect: str | None = None) -> str:
        given.append(expect)
        return put(self, key, data, expect=expect)

    monkeypatch.setattr(FileOrigin, "put", noted)
    origin = Retrying(FileOrigin(tmp_path.as_uri()), RetryPolicy(0))
    Intents(origin).change_keep(REF, raised)
    Intents(origin).change_keep(REF, raised)
    assert Intents(origin).read_all().keeps == {REF: KeepRecord(2, 2)}
    assert given == [None, None]

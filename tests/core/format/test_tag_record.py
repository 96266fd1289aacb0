"""Records of tags, which anybody with the storage's credentials may have written."""

import json

import pytest

from p2pcache.core.format.tag_record import (
    MAX_GENERATION,
    MAX_TAG_BYTES,
    NO_TAG,
    TagRecord,
    decode_tag,
    encode_tag,
)
from p2pcache.errors import IntegrityError

OLD, NEW = "a" * 64, "b" * 64


def test_each_change_adds_a_generation_and_a_deletion_keeps_it() -> None:
    first = NO_TAG.followed_by(OLD)
    second = first.followed_by(NEW)
    gone = second.followed_by("")
    assert first == TagRecord(OLD, 1)
    assert second == TagRecord(NEW, 2, OLD)
    assert gone == TagRecord("", 3, NEW)
    assert gone.followed_by(OLD).generation == 4
    for record in (first, second, gone):
        assert decode_tag(encode_tag(record)) == record
        assert len(encode_tag(record)) < MAX_TAG_BYTES


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": OLD, "generation": 0},
        {"digest": OLD, "generation": -1},
        {"digest": OLD, "generation": MAX_GENERATION + 1},
        {"digest": OLD.upper(), "generation": 1},
        {"digest": "../../etc/passwd", "generation": 1},
        {"digest": OLD, "generation": 1, "previous": "x"},
        {"digest": OLD, "generation": "1"},
        {"generation": 1},
        [],
    ],
)
def test_a_record_that_nobody_could_follow_is_refused(wrong: object) -> None:
    with pytest.raises(
        IntegrityError, match=r"not a tag record.*; .*delete this one's record in the storage"
    ):
        decode_tag(json.dumps(wrong).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b'{"digest":"\xff"}'])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(
        IntegrityError, match=r"not a tag record.*; .*delete this one's record in the storage"
    ):
        decode_tag(data)


def test_a_newer_releases_record_says_so() -> None:
    newer = json.dumps({"digest": NEW, "generation": 3, "signed_by": "x"}).encode()
    with pytest.raises(IntegrityError, match="newer release"):
        decode_tag(newer)


def test_the_last_generation_has_no_successor() -> None:
    last = decode_tag(encode_tag(TagRecord(OLD, MAX_GENERATION)))
    with pytest.raises(IntegrityError, match="push another tag"):
        last.followed_by(NEW)

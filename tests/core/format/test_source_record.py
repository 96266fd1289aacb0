"""Records of sources: golden bytes, limits, untrusted input."""

import pytest

from p2pcache.core.format.source_record import (
    BlobPlace,
    decode_record,
    encode_record,
    make_record,
)
from p2pcache.errors import IntegrityError

A, B = "a" * 64, "b" * 64
GOLDEN = (
    b'{"format":"p2pcache.sources.v1","blobs":{"' + A.encode() + b'":[{"source":"lake","key":"llama/a b.bin",'
    b'"validator":"etag:\\"1\\""}],"' + B.encode() + b'":[{"source":"hub","key":"o/r@0/x","validator":""}]}}'
)  # fmt: skip


def test_golden_bytes() -> None:
    record = make_record(
        {B: [BlobPlace("hub", "o/r@0/x")], A: [BlobPlace("lake", "llama/a b.bin", 'etag:"1"')]}
    )
    assert encode_record(record) == GOLDEN
    assert encode_record(decode_record(GOLDEN)) == GOLDEN


@pytest.mark.parametrize(
    "place",
    [
        BlobPlace("lake", "../secret"),
        BlobPlace("lake", "/etc/shadow"),
        BlobPlace("lake", "a/../b"),
        BlobPlace("lake", "a\nb"),
        BlobPlace("lake", ""),
        BlobPlace("lake", "x" * 2000),
        BlobPlace("../lake", "a"),
        BlobPlace("lake", "a", "etag:\r\nX-Evil: 1"),
        BlobPlace("lake", "a", "v" * 2000),
    ],
)
def test_a_place_that_could_lead_elsewhere_is_refused(place: BlobPlace) -> None:
    with pytest.raises(IntegrityError):
        make_record({A: [place]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{" * 1_000_000,
        b'{"format":"p2pcache.sources.v2","blobs":{}}',
        b'{"format":"p2pcache.sources.v1","blobs":{"xyz":[]}}',
        b'{"format":"p2pcache.sources.v1","blobs":{"' + A.encode() + b'":[]}}',
        b'{"format":"p2pcache.sources.v1","blobs":{},"url":"http://evil"}',
        b'{"format":"p2pcache.sources.v1","blobs":{' + b'"":[],' * 200_000 + b'"":[]}}',
    ],
    ids=["empty", "list", "deep", "newer", "no digest", "no place", "unknown field", "long"],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode_record(data)


def test_places_elsewhere_stay_behind_the_new_ones() -> None:
    old = make_record({A: [BlobPlace("lake", "a", "1"), BlobPlace("hub", "a", "1")]})
    new = make_record({A: [BlobPlace("lake", "a", "2")]})
    assert new.with_places_of(old).blobs == {
        A: [BlobPlace("lake", "a", "2"), BlobPlace("hub", "a", "1")]
    }
    many = make_record({A: [BlobPlace("more", str(n)) for n in range(4)]})
    assert len(new.with_places_of(many).blobs[A]) == 4

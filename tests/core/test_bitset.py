"""Run sets as bits, and their wire form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.errors import RemoteProtocolError


@given(st.sets(st.integers(0, 300)))
def test_run_sets(members: set[int]) -> None:
    bits = bitset.of(members)
    assert list(bitset.members(bits)) == sorted(members)
    assert bitset.first(bits) == min(members, default=-1)
    assert bitset.from_bytes(bitset.to_bytes(bits, 301), 301) == bits
    assert bits | bitset.full(301) == bitset.full(301)


@given(st.binary(max_size=20), st.integers(0, 170))
def test_untrusted_run_sets(data: bytes, count: int) -> None:
    try:
        bits = bitset.from_bytes(data, count)
    except RemoteProtocolError:
        return
    assert bitset.to_bytes(bits, count) == data
    assert bits & ~bitset.full(count) == 0


def test_run_sets_refuse_other_lengths_and_high_bits() -> None:
    for data, count in ((b"", 1), (b"\0\0", 8), (b"\x02", 1), (b"\0\x80", 15)):
        with pytest.raises(RemoteProtocolError):
            bitset.from_bytes(data, count)
    assert bitset.from_bytes(b"", 0) == bitset.full(0) == 0
    assert bitset.to_bytes(0, 0) == b""

"""Run sets as bits, and their wire form."""

import time

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


@given(st.sets(st.integers(0, 5000), max_size=60))
def test_members_of_long_sets(chosen: set[int]) -> None:
    assert list(bitset.members(bitset.of(chosen))) == sorted(chosen)
    assert bitset.of(chosen) == sum(1 << i for i in chosen)


def test_a_negative_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="negative"):
        bitset.of([3, -1])


def test_a_million_runs_take_time_by_their_number_and_not_by_its_square() -> None:
    began = time.thread_time()
    everything = bitset.of(range(1_000_000))
    assert everything == bitset.full(1_000_000)
    assert sum(1 for _ in bitset.members(everything)) == 1_000_000
    assert time.thread_time() - began < 5  # the square would take minutes

"""Bitmap files: what is written is read back, and damage is noticed."""

import pytest

from p2pcache.io.blobs import bitmap


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000, 1_000_000])
def test_bitmaps_round_trip(count: int) -> None:
    bits = bytearray(count)
    bits[::3] = b"\x01" * len(bits[::3])
    data = bitmap.encode(bits, 77)
    assert bitmap.decode(data) == (bits, 77)
    assert len(data) <= bitmap.MAX_BITMAP_BYTES


def test_a_bitmap_with_one_wrong_bit_is_no_bitmap() -> None:
    data = bitmap.encode(bytearray([1, 0, 1] * 7), 5)
    for position in range(len(data) * 8):
        torn = bytearray(data)
        torn[position // 8] ^= 1 << position % 8
        assert bitmap.decode(bytes(torn)) is None
    assert all(bitmap.decode(data[:n]) is None for n in range(len(data)))
    assert bitmap.decode(None) is None

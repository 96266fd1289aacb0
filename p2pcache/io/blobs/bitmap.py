"""The small file beside a partial blob that says which of its chunks are proved.

    magic "P2PHAVE1" | chunk count u32 | proved bytes u64 | BLAKE3 of header and bits (32 B) | bits

Bit i of the blob's own chunk list is bit i%8 of byte i//8. A damaged file counts as no bitmap: the
blob's bytes are then proved again before they are used.
"""

import struct
from typing import NamedTuple

from blake3 import blake3

_HEAD = struct.Struct("<8sIQ")
_MAGIC = b"P2PHAVE1"  # the last character is the format's version
_PROOF_BYTES = 32
MAX_BITMAP_BYTES = 1 << 18  # a million chunks are 125 KB


class Bitmap(NamedTuple):
    """Proved chunks of one partial blob."""

    bits: bytearray  # one byte per chunk, 0 or 1
    done_bytes: int  # sum of the proved chunks' lengths


def encode(bits: bytearray, done_bytes: int) -> bytes:
    """The file's bytes."""
    head = _HEAD.pack(_MAGIC, len(bits), done_bytes)
    packed = _pack(bits)
    return head + blake3(head + packed).digest() + packed


def decode(data: bytes | None) -> Bitmap | None:
    """Parse a bitmap file; None for a torn, foreign or newer one."""
    if data is None or len(data) < _HEAD.size + _PROOF_BYTES:
        return None
    magic, count, done_bytes = _HEAD.unpack_from(data)
    packed = data[_HEAD.size + _PROOF_BYTES :]
    if magic != _MAGIC or len(packed) != (count + 7) // 8:
        return None
    proof = blake3(data[: _HEAD.size] + packed).digest()
    if proof != data[_HEAD.size : _HEAD.size + _PROOF_BYTES]:
        return None
    return Bitmap(_unpack(packed, count), done_bytes)


def _pack(bits: bytearray) -> bytes:
    # As a number in base 2, written by the C parts of Python: a million bits take milliseconds.
    if not bits:
        return b""
    text = bits.translate(_TO_TEXT)[::-1].decode("ascii")
    return int(text, 2).to_bytes((len(bits) + 7) // 8, "little")


def _unpack(packed: bytes, count: int) -> bytearray:
    if not count:
        return bytearray()
    value = int.from_bytes(packed, "little") & ((1 << count) - 1)
    text = f"{value:0{count}b}"[::-1]
    return bytearray(text.encode("ascii").translate(_FROM_TEXT))


_TO_TEXT = bytes([ord("0"), *([ord("1")] * 255)])
_FROM_TEXT = bytes(1 if i == ord("1") else 0 for i in range(256))

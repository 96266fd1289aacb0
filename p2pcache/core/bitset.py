"""Sets of runs as bits of an int: the one representation, on the wire as little-endian bytes."""

from collections.abc import Iterable, Iterator
from itertools import islice

from p2pcache.errors import RemoteProtocolError


def full(count: int) -> int:
    """The set {0 .. count-1}."""
    return (1 << count) - 1


def of(members: Iterable[int]) -> int:
    """The set of the given indices."""
    bits = 0
    for i in members:
        bits |= 1 << i
    return bits


def members(bits: int) -> Iterator[int]:
    """Indices in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def first(bits: int) -> int:
    """The lowest index, or -1 of the empty set."""
    return (bits & -bits).bit_length() - 1


def lowest(bits: int, count: int) -> int:
    """The set of the `count` lowest members (or all, if there are fewer)."""
    return of(islice(members(bits), count))


def to_bytes(bits: int, count: int) -> bytes:
    """Wire form: bit i of the set is bit i%8 of byte i//8."""
    return bits.to_bytes((count + 7) // 8, "little")


def from_bytes(data: bytes, count: int) -> int:
    """Parse the wire form of untrusted bytes.

    Raises:
        RemoteProtocolError: wrong length or a bit beyond `count`.
    """
    if len(data) != (count + 7) // 8:
        raise RemoteProtocolError(f"bitmap of {len(data)} bytes for {count} runs")
    bits = int.from_bytes(data, "little")
    if bits >> count:
        raise RemoteProtocolError(f"bitmap has a bit beyond {count} runs")
    return bits

"""Sets of runs as bits of one integer: bit i stands for run i. On the wire they are little-endian bytes."""

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice
from operator import or_

from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import RunIndex, RunSet

FEW = 64  # members up to which a set is walked by arithmetic; each step costs time by the size of the whole set


def full(count: int) -> RunSet:
    """The set {0 .. count-1}."""
    return (1 << count) - 1


def of(members: Iterable[RunIndex]) -> RunSet:
    """The set of the given indices."""
    listed = list(members)
    if len(listed) <= FEW:
        runs = 0
        for i in listed:
            runs |= 1 << i
        return runs
    data = bytearray((max(listed) >> 3) + 1)
    for i in listed:
        data[i >> 3] |= 1 << (i & 7)
    return int.from_bytes(data, "little")


def union(sets: Iterable[RunSet]) -> RunSet:
    """The runs that are in any of these sets."""
    return reduce(or_, sets, 0)


def members(runs: RunSet) -> Iterator[RunIndex]:
    """The indices in ascending order."""
    if runs.bit_count() > FEW:
        digits = bin(runs)[:1:-1]
        i = digits.find("1")
        while i >= 0:
            yield i
            i = digits.find("1", i + 1)
        return
    while runs:
        low = runs & -runs
        yield low.bit_length() - 1
        runs ^= low


def first(runs: RunSet) -> RunIndex:
    """The lowest index; -1 of the empty set."""
    return (runs & -runs).bit_length() - 1


def lowest(runs: RunSet, count: int) -> RunSet:
    """The set of the `count` lowest members, or of all if there are fewer."""
    return of(islice(members(runs), count))


def to_bytes(runs: RunSet, count: int) -> bytes:
    """Wire form of a set of runs of a model with `count` runs: run i is bit i%8 of byte i//8."""
    return runs.to_bytes((count + 7) // 8, "little")


def from_bytes(data: bytes, count: int) -> RunSet:
    """Parse the wire form of untrusted bytes.

    Args:
        data: the wire form.
        count: runs of the model.

    Raises:
        RemoteProtocolError: wrong length, or a bit beyond `count`.
    """
    if len(data) != (count + 7) // 8:
        raise RemoteProtocolError(f"bitmap of {len(data)} bytes for {count} runs")
    runs = int.from_bytes(data, "little")
    if runs >> count:
        raise RemoteProtocolError(f"bitmap has a bit beyond {count} runs")
    return runs

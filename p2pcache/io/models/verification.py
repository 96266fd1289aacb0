"""Verifying a model: every proved chunk is hashed again, on several threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from p2pcache.core.format.layout import Layout
from p2pcache.errors import P2PCacheError
from p2pcache.io.blobs.blob_file import BlobFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.proving import take_back
from p2pcache.io.disk.region_hash import proves

VERIFY_THREADS = 2  # BLAKE3 scales with threads, disks with two readers; other cores serve peers
_UNIT_BYTES = 64 << 20  # a unit of work: progress several times a second


class _Unit(NamedTuple):
    """Consecutive proved chunks of one blob."""

    number: int  # of the blob, in the layout's order
    positions: list[int]
    nbytes: int


def verify(
    blobs: BlobPool,
    layout: Layout,
    files: Sequence[BlobFile],
    progress: Callable[[int, int], None] | None = None,
) -> list[int]:
    """Hash every proved chunk again; bad ones are believed no longer.

    Args:
        blobs: the pool.
        layout: of the model.
        files: its blobs, in the layout's order.
        progress: called with (bytes hashed, bytes to hash).

    Returns:
        The bad chunks, ascending.
    """
    units = list(_units(files))
    total = sum(unit.nbytes for unit in units)
    done = 0
    bad: set[int] = set()

    def check(unit: _Unit) -> list[int]:
        return _bad_positions(blobs, files[unit.number], unit.positions)

    with ThreadPoolExecutor(VERIFY_THREADS, "verify") as pool:
        for unit, wrong in zip(units, pool.map(check, units), strict=True):
            if wrong:
                bad.update(layout.blobs[unit.number].chunks[p] for p in wrong)
                take_back(blobs, files[unit.number], wrong)
            done += unit.nbytes
            if progress is not None:
                progress(done, total)
    return sorted(bad)


def _units(files: Sequence[BlobFile]) -> Iterator[_Unit]:
    for number, blob in enumerate(files):
        positions: list[int] = []
        nbytes = 0
        for position, bit in enumerate(bytes(blob.bits)):
            if bit:
                positions.append(position)
                nbytes += blob.lengths[position]
            if nbytes >= _UNIT_BYTES:
                yield _Unit(number, positions, nbytes)
                positions, nbytes = [], 0
        if positions:
            yield _Unit(number, positions, nbytes)


def _bad_positions(blobs: BlobPool, blob: BlobFile, positions: list[int]) -> list[int]:
    try:
        file = blobs.reader(blob, check=False)
    except P2PCacheError:
        return positions
    return [
        p for p in positions
        if not proves(file.fd, blob.offsets[p], blob.lengths[p], blob.digest(p))
    ]  # fmt: skip

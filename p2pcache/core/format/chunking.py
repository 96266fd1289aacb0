"""Where files are cut into chunks (format v1): by the file's size and, for safetensors, by its header.

Chunks lie on a grid of fixed size, which restarts at each large tensor of a safetensors file. So the cuts follow the
structure of a file; they aren't content-defined (as in LBFS, Muthitacharoen and others 2001). Nodes needn't agree on
the cuts, since a manifest lists its lengths. But the cuts decide whether two versions of a model share chunks, so
golden tests pin them.
"""

import struct
from collections.abc import Sequence

import msgspec

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

MAX_CHUNK_BYTES = 64 * MiB  # what a reader accepts; writers of v1 cut at 16 MiB at most
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own cap on its JSON header


def nominal_chunk_bytes(size_bytes: int) -> int:
    """The chunk size for a file of `size_bytes`.

    A swarm wants at least some hundred chunks, so that nodes have something to exchange. A node with a fast link wants
    few of them per second (docs/lab/0002).
    """
    if size_bytes < 256 * MiB:
        return 256 * KiB
    if size_bytes < 1 * GiB:
        return 1 * MiB
    if size_bytes < 64 * GiB:
        return 4 * MiB
    return 16 * MiB


def cut(size_bytes: int, starts: Sequence[int] = ()) -> list[int]:
    """Chunk lengths of a file in bytes, in order; they add up to `size_bytes`. An empty file has no chunk.

    Args:
        size_bytes: the file's size.
        starts: offsets at which the grid restarts (from `safetensors_starts`); increasing,
            inside the file.
    """
    nominal = nominal_chunk_bytes(size_bytes)
    lengths: list[int] = []
    for begin, end in zip([0, *starts], [*starts, size_bytes], strict=True):
        full, rest = divmod(end - begin, nominal)
        lengths += [nominal] * full
        if rest:
            lengths.append(rest)
    return lengths


def safetensors_header_bytes(first_bytes: bytes, size_bytes: int) -> int | None:
    """Bytes of the JSON header of a safetensors file; None if the file isn't certainly one.

    Args:
        first_bytes: of the file, at least 8 if it has them.
        size_bytes: the whole file's size.
    """
    if len(first_bytes) < 8 or size_bytes < 10:
        return None
    (length,) = struct.unpack("<Q", first_bytes[:8])
    if not 2 <= length <= min(MAX_HEADER_BYTES, size_bytes - 8):
        return None
    return int(length)


def safetensors_starts(header: bytes, size_bytes: int) -> list[int]:
    """Offsets at which the grid restarts: the data section and each tensor of at least one chunk.

    A longer header or an inserted tensor then doesn't shift the cuts behind it.

    Args:
        header: the JSON header, without the 8 length bytes.
        size_bytes: the whole file's size.

    Returns:
        Increasing offsets. [] if the header isn't certainly right: then the file is cut on a plain grid. It never
        raises, since files are untrusted.
    """
    try:
        table = msgspec.json.decode(header)
        spans = sorted(
            (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
            for name, entry in table.items()
            if name != "__metadata__"
        )
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, IndexError, AttributeError,
            RecursionError, OverflowError):  # fmt: skip
        return []
    data_start = 8 + len(header)
    end = 0
    for begin, stop in spans:  # the library's own rule: no gap, no overlap, nothing left over
        if begin != end or stop < begin:
            return []
        end = stop
    if data_start + end != size_bytes:
        return []
    nominal = nominal_chunk_bytes(size_bytes)
    starts = {data_start} | {data_start + b for b, e in spans if e - b >= nominal}
    return sorted(s for s in starts if 0 < s < size_bytes)

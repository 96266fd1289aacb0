"""The safetensors header: 8 bytes of length, JSON, then the tensors' bytes without a gap. Pure.

Headers are untrusted: a wrong one is `InvalidHeader`, never a crash, never bytes of a neighbour.
The rules are the safetensors library's own, and one more: a name may stand there only once.
"""

import json
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

from p2pcache.errors import InvalidHeader
from p2pcache.loader.format.dtypes import BITS

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own cap
MAX_DIMS = 64  # torch's own limit
MAX_COUNT = 1 << 63  # torch and numpy count bytes and strides so far, of empty tensors too
LENGTH_BYTES = 8
_METADATA = "__metadata__"
_LFS = b"version "  # how such a text begins; as a length it's far over the limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of one file."""

    name: str
    dtype: str  # safetensors' word: "BF16"
    shape: tuple[int, ...]
    path: str  # of the file
    start: int  # byte offset in the file, not in its data section
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says about itself."""

    tensors: dict[str, TensorInfo]  # in file order
    metadata: dict[str, str]
    data_start: int


def shown(name: object) -> str:
    """A tensor's name for a message of one line: names are untrusted, keys of a dict may be anything."""
    text = name if isinstance(name, str) and name.isprintable() else repr(name)
    return text if len(text) <= 100 else f"{text[:100]}..."


def header_bytes(first_bytes: bytes, size_bytes: int, path: str) -> int:
    """Length of the JSON that the file's first 8 bytes announce.

    Raises:
        InvalidHeader: it can't be.
    """
    if len(first_bytes) < LENGTH_BYTES or size_bytes < LENGTH_BYTES + 2:
        raise InvalidHeader(f"{path}: {size_bytes} bytes are no safetensors file; pull it again")
    if first_bytes == _LFS:
        raise InvalidHeader(f"{path}: is Git LFS's pointer to a file, not the file; git lfs pull")
    (length,) = struct.unpack("<Q", first_bytes[:LENGTH_BYTES])
    if length > MAX_HEADER_BYTES:
        _refuse(path, f"the header claims {length} bytes, over the limit of {MAX_HEADER_BYTES}")
    if not 2 <= length <= size_bytes - LENGTH_BYTES:
        _refuse(path, f"the header claims {length} bytes in a file of {size_bytes}")
    return int(length)


def parse(header: bytes, size_bytes: int, path: str) -> Header:
    """Read and check the JSON header.

    Args:
        header: the JSON, without the 8 length bytes.
        size_bytes: the whole file's size.
        path: the file, for messages and for `TensorInfo.path`.

    Raises:
        InvalidHeader: a gap, an overlap, a wrong size, a name twice, an unknown dtype, ...
    """
    table = _decode(header, path)
    metadata = _metadata(table.pop(_METADATA, {}), path)
    data_start = LENGTH_BYTES + len(header)
    tensors = [_tensor(name, entry, data_start, path) for name, entry in table.items()]
    tensors.sort(key=lambda t: (t.start, t.end))
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            kind = "overlaps its neighbour" if tensor.start < position else "follows a gap"
            _refuse(path, f"tensor {_short(tensor.name)} {kind}")
        position = tensor.end
    if position != size_bytes:
        _refuse(path, f"the tensors end at byte {position}, the file at {size_bytes}")
    return Header({t.name: t for t in tensors}, metadata, data_start)


def _decode(header: bytes, path: str) -> dict[str, Any]:
    try:
        table = json.loads(
            header.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except InvalidHeader as error:
        _refuse(path, str(error))
    except (ValueError, RecursionError):
        _refuse(path, "the header is not JSON")
    if not isinstance(table, dict):
        _refuse(path, "the header is not a JSON object")
    return table


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidHeader(f"the name {_short(twice)} stands there twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _metadata(found: object, path: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        _refuse(path, "__metadata__ is not a map of texts")
    return found


def _tensor(name: str, entry: object, data_start: int, path: str) -> TensorInfo:
    if not name.isascii() and not _is_text(name):
        _refuse(path, f"the name {_short(name)} is not Unicode text")
    if not isinstance(entry, dict):
        _refuse(path, f"tensor {_short(name)} is not described by an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        _refuse(path, f"tensor {_short(name)} has the unknown dtype {_short(str(dtype))}")
    if not _naturals(shape, MAX_DIMS):
        _refuse(path, f"tensor {_short(name)} has no proper shape")
    if not _naturals(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {_short(name)} has no proper data_offsets")
    bits, most = BITS[dtype], -(-BITS[dtype] // 8)
    for length in shape:
        bits *= length
        most *= length or 1
    if most >= MAX_COUNT:  # an empty tensor can claim it
        _refuse(path, f"tensor {_short(name)} has a shape that no framework can count")
    if bits != 8 * (offsets[1] - offsets[0]):
        _refuse(path, f"tensor {_short(name)}: dtype and shape don't fill its data_offsets")
    return TensorInfo(
        name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1]
    )


def _naturals(found: object, most: int) -> TypeGuard[list[int]]:
    return (
        isinstance(found, list)
        and len(found) <= most
        and all(type(n) is int and 0 <= n < 1 << 62 for n in found)  # a bool is an int, too
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair: nobody could print or store it
        return False
    return True


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _refuse(path: str, why: str) -> NoReturn:
    raise InvalidHeader(f"{path}: {why}; the file is damaged or not safetensors, pull it again")

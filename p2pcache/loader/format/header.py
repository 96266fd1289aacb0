"""The safetensors header: 8 bytes of length, JSON, then the tensors' bytes without a gap.

Headers are untrusted. A wrong one is `InvalidHeader`, never a crash, never bytes of another tensor.
The rules are the safetensors library's own, and one more: each name occurs once.
"""

import json
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

from p2pcache.errors import InvalidHeader
from p2pcache.loader.format.dtypes import BITS

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
MAX_DIMS = 64  # torch's own limit
MAX_COUNT = 1 << 63  # torch and numpy keep sizes and strides in 63 bits, of empty tensors, too
LENGTH_BYTES = 8
_METADATA = "__metadata__"
_LFS = b"version "  # begins a pointer file of Git LFS; as a length it is far over the limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of one file."""

    name: str
    dtype: str  # safetensors' word, such as "BF16"
    shape: tuple[int, ...]  # in elements
    path: str  # of the file
    start: int  # byte offset in the file, not in its data section
    end: int  # byte offset after the last byte

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor, in bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """The content of one file's header."""

    tensors: dict[str, TensorInfo]  # in file order
    metadata: dict[str, str]
    data_start: int  # byte offset of the data section in the file


def shown(name: object) -> str:
    """A tensor's name in a form that fits a one-line message; names are untrusted and may be any object."""
    text = name if isinstance(name, str) and name.isprintable() else repr(name)
    return text if len(text) <= 100 else f"{text[:100]}..."


def header_bytes(first_bytes: bytes, size_bytes: int, path: str) -> int:
    """Length of the JSON header in bytes, as the file's first 8 bytes say.

    Args:
        first_bytes: the first 8 bytes, or fewer if the file is shorter.
        size_bytes: of the whole file.
        path: of the file, for messages.

    Raises:
        InvalidHeader: no safetensors file has this length.
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
    """Parse and check the JSON header.

    Args:
        header: the JSON, without the 8 length bytes.
        size_bytes: of the whole file.
        path: of the file, for messages and for `TensorInfo.path`.

    Raises:
        InvalidHeader: a gap, an overlap, a wrong size, a name twice, an unknown dtype, ...
    """
    table = _decode(header, path)
    metadata = _metadata(table.pop(_METADATA, None), path)
    data_start = LENGTH_BYTES + len(header)
    tensors = [_tensor(name, entry, data_start, path) for name, entry in table.items()]
    tensors.sort(key=lambda t: (t.start, t.end))
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            kind = "overlaps its neighbour" if tensor.start < position else "follows a gap"
            _refuse(path, f"tensor {_quoted(tensor.name)} {kind}")
        position = tensor.end
    if position != size_bytes:
        _refuse(path, f"the tensors end at byte {position}, the file at {size_bytes}")
    return Header({t.name: t for t in tensors}, metadata, data_start)


def _decode(header: bytes, path: str) -> dict[str, Any]:
    try:
        table = json.loads(
            header.decode("utf-8"), object_pairs_hook=_unique_names, parse_constant=_refuse_constant
        )
    except InvalidHeader as error:
        _refuse(path, str(error))
    except (ValueError, RecursionError):
        _refuse(path, "the header is not JSON")
    if not isinstance(table, dict):
        _refuse(path, "the header is not a JSON object")
    return table


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidHeader(f"the name {_quoted(twice)} stands there twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _metadata(found: object, path: str) -> dict[str, str]:
    if found is None:  # left out, or null: the safetensors library takes both
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        _refuse(path, "__metadata__ is not a map of texts")
    return found


def _tensor(name: str, entry: object, data_start: int, path: str) -> TensorInfo:
    if not name.isascii() and not _is_text(name):
        _refuse(path, f"the name {_quoted(name)} is not Unicode text")
    if not isinstance(entry, dict):
        _refuse(path, f"tensor {_quoted(name)} is not described by an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        _refuse(path, f"tensor {_quoted(name)} has the unknown dtype {_quoted(str(dtype))}")
    if not _is_naturals(shape, MAX_DIMS):
        _refuse(path, f"tensor {_quoted(name)} has no proper shape")
    if not _is_naturals(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {_quoted(name)} has no proper data_offsets")
    bits, most = BITS[dtype], -(-BITS[dtype] // 8)
    for length in shape:
        bits *= length
        most *= length or 1
    if most >= MAX_COUNT:  # an empty tensor can have such a shape
        _refuse(path, f"tensor {_quoted(name)} has a shape that no framework can count")
    if bits != 8 * (offsets[1] - offsets[0]):
        _refuse(path, f"tensor {_quoted(name)}: dtype and shape don't fill its data_offsets")
    return TensorInfo(
        name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1]
    )


def _is_naturals(found: object, most: int) -> TypeGuard[list[int]]:
    return (
        isinstance(found, list)
        and len(found) <= most
        and all(
            type(n) is int and 0 <= n < 1 << 62 for n in found
        )  # `isinstance` would take a bool
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _refuse(path: str, why: str) -> NoReturn:
    raise InvalidHeader(f"{path}: {why}; the file is damaged or not safetensors, pull it again")

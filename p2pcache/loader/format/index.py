"""Which files of a model hold tensors, and the one table over all of them. Pure.

A single file, a sharded model with its index, shards without an index; other files (.gguf,
config.json) are not ours to read and pass as files.
"""

import json
import re
from collections.abc import Iterable, Mapping

from p2pcache.errors import InvalidHeader, NotFound, UsageError
from p2pcache.loader.format.header import Header, TensorInfo

MAX_INDEX_BYTES = 100_000_000  # as a header; 100,000 tensors take about 10 MB
_SUFFIX = ".safetensors"
_INDEX = ".safetensors.index.json"
_USUAL = "model.safetensors.index.json"


def find_index(files: Mapping[str, int], model: str) -> str | None:
    """The model's index file at the top of its directory, if it has one.

    Raises:
        UsageError: several, and none has the usual name.
        InvalidHeader: it's larger than any index.
    """
    found = [path for path in files if path.endswith(_INDEX) and "/" not in path]
    if len(found) > 1 and _USUAL in found:
        found = [_USUAL]
    if len(found) > 1:
        raise UsageError(f"{model}: several indexes ({', '.join(found)}); remove all but one")
    if found and files[found[0]] > MAX_INDEX_BYTES:
        raise InvalidHeader(f"{model}: {found[0]} is too large for an index; push the model again")
    return found[0] if found else None


def parse_index(data: bytes, files: Mapping[str, int], path: str) -> dict[str, str]:
    """Tensor name to file, as the index says. Only files of the model itself may be named.

    Raises:
        InvalidHeader: not an index, or it names a file that the model doesn't have.
    """
    try:
        weight_map = json.loads(data)["weight_map"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise InvalidHeader(f"{path}: not an index (no weight_map); push the model again") from None
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise InvalidHeader(f"{path}: weight_map must map names to files; push the model again")
    missing = sorted(set(weight_map.values()) - files.keys())
    if missing:
        raise InvalidHeader(
            f"{path}: names {missing[0][:100]!r}, which the model doesn't have; push the model again"
        )
    return weight_map


def weight_files(
    files: Iterable[str], weight_map: Mapping[str, str] | None, model: str
) -> list[str]:
    """The files that hold the tensors, in natural order (shard 2 before shard 10).

    Raises:
        NotFound: there is none.
    """
    found = set(weight_map.values()) if weight_map is not None else likely_files(files)
    if not found:
        raise NotFound(
            f"{model}: no .safetensors file in it, and others aren't read here; take them by their path "
            "(p2pcache.snapshot brings a ref's files)"
        )
    return sorted(found, key=natural)


def likely_files(files: Iterable[str]) -> set[str]:
    """The files that hold the tensors if no index says so."""
    every = {path for path in files if path.endswith(_SUFFIX)}
    found = {path for path in every if "/" not in path} or every
    plain = {path for path in found if not path.startswith("consolidated")}
    return plain or found  # some publishers put the same weights there twice


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key under which numbers count as numbers."""
    return [
        (int(part), "") if part.isdecimal() and part.isascii() else (-1, part)
        for part in re.split(r"(\d+)", text)
    ]


def merge(
    headers: Mapping[str, Header], weight_map: Mapping[str, str] | None, model: str
) -> dict[str, TensorInfo]:
    """One table over all files, in order of file and offset.

    Where two files hold the same name, the index decides.

    Raises:
        InvalidHeader: a name twice with no index to decide, or the index names what isn't there.
    """
    chosen = weight_map or {}
    table: dict[str, TensorInfo] = {}
    for path, header in headers.items():
        for name, info in header.tensors.items():
            if chosen.get(name, path) != path:
                continue
            if name in table:
                raise InvalidHeader(
                    f"{model}: tensor {name[:100]!r} is in {table[name].path} and in {path}; "
                    "an index must say which one counts"
                )
            table[name] = info
    absent = chosen.keys() - table.keys()
    if absent:
        name = min(absent)
        raise InvalidHeader(
            f"{model}: the index has {name[:100]!r}, {chosen[name]} has not; push the model again"
        )
    return table

"""Which files of a model hold tensors, and one table of all their tensors.

A model is a single file, shards with an index, or shards without. Files of other kinds (.gguf,
config.json) aren't read.
"""

import json
import re
from collections.abc import Iterable, Mapping

from p2pcache.errors import InvalidHeader, NotFound, UsageError
from p2pcache.loader.format.header import Header, TensorInfo

MAX_INDEX_BYTES = 100_000_000  # as of a header; 100,000 tensors take about 10 MB
_SUFFIX = ".safetensors"
_INDEX = ".safetensors.index.json"
_USUAL = "model.safetensors.index.json"


def find_index(files: Mapping[str, int], model: str) -> str | None:
    """The path of the model's index, if there is one at the top of its directory.

    Args:
        files: path to size in bytes.
        model: its name, for messages.

    Raises:
        UsageError: there are several, and none has the usual name.
        InvalidHeader: the index is too large.
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
    """Parse an index into a map from tensor name to file.

    Args:
        data: the index file.
        files: path to size in bytes.
        path: of the index, for messages.

    Raises:
        InvalidHeader: `data` is no index, or it names a file that the model doesn't have.
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

    Args:
        files: paths of all files.
        weight_map: of the index; None: there is no index.
        model: its name, for messages.

    Raises:
        NotFound: there are none.
    """
    found = set(weight_map.values()) if weight_map is not None else likely_files(files)
    if not found:
        raise NotFound(
            f"{model}: no .safetensors file in it, and others aren't read here; take them by their path "
            "(p2pcache.snapshot brings a ref's files)"
        )
    return sorted(found, key=natural)


def likely_files(files: Iterable[str]) -> set[str]:
    """The files that hold the tensors of a model without an index.

    Beside `model.safetensors` a `model.fp16.safetensors` is a variant of it, which is loaded on request alone.
    """
    every = {path for path in files if path.endswith(_SUFFIX)}
    found = {path for path in every if "/" not in path} or every
    found = {path for path in found if _without_variant(path) not in found}
    plain = {path for path in found if not path.startswith("consolidated")}
    return plain or found  # some publishers add the same weights under that name


def _without_variant(path: str) -> str:
    stem, dot, _ = path.removesuffix(_SUFFIX).rpartition(".")
    return f"{stem}{_SUFFIX}" if dot else ""


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key that compares numbers in a text by value."""
    return [
        (int(part), "") if part.isdecimal() and part.isascii() else (-1, part)
        for part in re.split(r"(\d+)", text)
    ]


def merge(
    headers: Mapping[str, Header], weight_map: Mapping[str, str] | None, model: str
) -> dict[str, TensorInfo]:
    """One table of the tensors of all files, in order of file and offset.

    Args:
        headers: of each file, by path.
        weight_map: of the index, which decides where two files have the same name; None: no index.
        model: its name, for messages.

    Raises:
        InvalidHeader: two files have the same name and there is no index; or the index names a tensor
            that its file doesn't have.
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
                    "an index must say which one counts, or `files` of a load"
                )
            table[name] = info
    absent = chosen.keys() - table.keys()
    if absent:
        name = min(absent)
        raise InvalidHeader(
            f"{model}: the index has {name[:100]!r}, {chosen[name]} has not; push the model again"
        )
    return table

"""The table of a model's tensors, read from a source whose bytes may still arrive."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from p2pcache.errors import InvalidHeader, NotFound, UsageError
from p2pcache.loader.collector import no_collections
from p2pcache.loader.format.header import LENGTH_BYTES, Header, TensorInfo, header_bytes, parse
from p2pcache.loader.format.index import (
    find_index,
    likely_files,
    merge,
    natural,
    parse_index,
    weight_files,
)
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.deadline import Deadline

# All headers of a model together. A model of very many tensors has a tenth of this; parsing takes many times the text.
MAX_ALL_HEADERS_BYTES = 256 << 20
_WAIT_S = 1.0  # of one wait, before the deadline is checked again


class Part(NamedTuple):
    """The files that a load looks at, of a model that has several parts or variants."""

    subfolder: str = ""  # such as "text_encoder"; "": the model's own directory
    files: tuple[
        str, ...
    ] = ()  # globs of .safetensors files in it; (): as the index or the names say

    @classmethod
    def parse(cls, subfolder: str | None, files: str | Iterable[str] | None) -> "Part":
        """Check what a caller gave.

        Raises:
            UsageError: it is no path inside a model, or no glob.
        """
        globs = [files] if isinstance(files, str) else list(files or ())
        folder = subfolder or ""
        if not isinstance(folder, str) or folder.startswith("/") or ".." in folder.split("/"):
            raise UsageError(f"subfolder {subfolder!r}: expected a folder of the model")
        if not all(isinstance(glob, str) for glob in globs):
            raise UsageError(f"files {files!r}: expected a glob such as '*.fp16.safetensors'")
        return cls(folder.strip("/"), tuple(globs))

    def select(self, files: Mapping[str, int], model: str) -> dict[str, int]:
        """The files of this part: path below the subfolder -> bytes.

        Raises:
            NotFound: there are none.
        """
        base = f"{self.subfolder}/" if self.subfolder else ""
        found = {p.removeprefix(base): n for p, n in files.items() if p.startswith(base)}
        if self.files:
            found = {
                path: size for path, size in found.items()
                if path.endswith(".safetensors") and any(fnmatch.fnmatchcase(path, g) for g in self.files)
            }  # fmt: skip
        if not found and (base or self.files):
            what = ", ".join(self.files) or "files"
            raise NotFound(
                f"{model}: no {what} in {base or 'it'}; safe_open(...).files() lists them"
            )
        return found


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tensors and files of a model."""

    tensors: dict[str, TensorInfo]  # in order of file and offset
    metadata: dict[str, str]  # of all headers; where two have one key, the first file's
    files: dict[str, int]  # path -> bytes, also those that hold no tensors


def open_catalog(source: Source, deadline: Deadline, part: Part = WHOLE) -> Catalog:
    """Read index and headers, in the order in which their bytes arrive, before any weights.

    Args:
        source: the model.
        deadline: the caller's.
        part: the files to look at.

    Raises:
        InvalidHeader: a file or the index breaks a rule of its format.
        NotFound: the model has no safetensors file.
        TimedOut: the caller's time is up.
    """
    every = dict(source.files())
    base = f"{part.subfolder}/" if part.subfolder else ""
    files = part.select(every, source.name)
    index = find_index(files, source.name)
    weight_map = None
    if index is not None:
        # The first bytes of the likely files are asked for together with the index: two waits, one
        # after the other, would each queue behind what the swarm is fetching.
        likely = _length_ranges(base, sorted(likely_files(files)), files)
        data = fetch(source, [Range(base + index, 0, files[index]), *likely], deadline)[0]
        weight_map = parse_index(data, files, base + index)
    chosen = sorted(files, key=natural) if part.files else None
    paths = chosen or weight_files(files, weight_map, source.name)
    length_ranges = _length_ranges(base, paths, files)
    lengths = [
        header_bytes(first, files[path], base + path)
        for path, first in zip(paths, fetch(source, length_ranges, deadline), strict=True)
    ]
    if sum(lengths) > MAX_ALL_HEADERS_BYTES:
        raise InvalidHeader(f"{source.name}: its headers claim {sum(lengths)} bytes; push it again")
    bodies = [
        Range(base + path, LENGTH_BYTES, LENGTH_BYTES + length)
        for path, length in zip(paths, lengths, strict=True)
    ]
    parts = fetch(source, bodies, deadline)
    metadata: dict[str, str] = {}
    with no_collections():
        headers: dict[str, Header] = {
            path: parse(data, files[path], base + path)
            for path, data in zip(paths, parts, strict=True)
        }
        for header in headers.values():
            metadata = header.metadata | metadata
        return Catalog(merge(headers, weight_map, source.name), metadata, every)


def _length_ranges(base: str, paths: Sequence[str], files: Mapping[str, int]) -> list[Range]:
    """The bytes of each file that say how long its header is."""
    return [Range(base + path, 0, min(LENGTH_BYTES, files[path])) for path in paths]


def fetch(source: Source, ranges: Sequence[Range], deadline: Deadline) -> list[bytes]:
    """Read small byte ranges as they arrive.

    Args:
        source: where from.
        ranges: which; empty ones give b"".
        deadline: the caller's.

    Returns:
        The bytes of each range, in the given order.

    Raises:
        TimedOut: the caller's time is up.
        IntegrityError: a file is shorter than the source said.
    """
    found: list[bytes] = [b""] * len(ranges)
    pending = [i for i, r in enumerate(ranges) if r.end > r.start]
    while pending:
        arrived = [i for i in pending if source.available(*ranges[i])]
        if not arrived:
            deadline.check()
            source.wait([ranges[i] for i in pending], deadline.slice_s(_WAIT_S))
        for i in arrived:
            path, start, end = ranges[i]
            data = bytearray(end - start)
            source.read(path, start, [memoryview(data)])
            found[i] = bytes(data)
            pending.remove(i)
    return found

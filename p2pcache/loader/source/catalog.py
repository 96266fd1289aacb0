"""The table of a model's tensors, read from a source whose bytes may still arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2pcache.errors import InvalidHeader
from p2pcache.loader.format.header import LENGTH_BYTES, Header, TensorInfo, header_bytes, parse
from p2pcache.loader.format.index import find_index, likely_files, merge, parse_index, weight_files
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.deadline import Deadline

# Of a model's headers together. 91,000 tensors take 12 MB; parsing takes ten times the text.
MAX_ALL_HEADERS_BYTES = 256 << 20
_WAIT_S = 1.0  # of one wait, before the deadline is checked again


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tensors and files of a model."""

    tensors: dict[str, TensorInfo]  # in order of file and offset
    metadata: dict[str, str]  # of all headers; where two have one key, the first file's
    files: dict[str, int]  # path -> bytes, also those that hold no tensors


def open_catalog(source: Source, deadline: Deadline) -> Catalog:
    """Read index and headers, in the order in which their bytes arrive, before any weights.

    Raises:
        InvalidHeader: a file or the index breaks a rule of its format.
        NotFound: the model has no safetensors file.
        TimedOut: the caller's time is up.
    """
    files = dict(source.files())
    index = find_index(files, source.name)
    weight_map = None
    if index is not None:
        # The first bytes of the likely files are asked for together with the index: two waits, one
        # after the other, would each queue behind what the swarm is fetching.
        likely = _length_ranges(sorted(likely_files(files)), files)
        data = fetch(source, [Range(index, 0, files[index]), *likely], deadline)[0]
        weight_map = parse_index(data, files, index)
    paths = weight_files(files, weight_map, source.name)
    length_ranges = _length_ranges(paths, files)
    lengths = [
        header_bytes(first, files[path], path)
        for path, first in zip(paths, fetch(source, length_ranges, deadline), strict=True)
    ]
    if sum(lengths) > MAX_ALL_HEADERS_BYTES:
        raise InvalidHeader(f"{source.name}: its headers claim {sum(lengths)} bytes; push it again")
    bodies = [
        Range(path, LENGTH_BYTES, LENGTH_BYTES + length)
        for path, length in zip(paths, lengths, strict=True)
    ]
    headers: dict[str, Header] = {
        path: parse(data, files[path], path)
        for path, data in zip(paths, fetch(source, bodies, deadline), strict=True)
    }
    metadata: dict[str, str] = {}
    for header in headers.values():
        metadata = header.metadata | metadata
    return Catalog(merge(headers, weight_map, source.name), metadata, files)


def _length_ranges(paths: Sequence[str], files: Mapping[str, int]) -> list[Range]:
    """The bytes of each file that say how long its header is."""
    return [Range(path, 0, min(LENGTH_BYTES, files[path])) for path in paths]


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

"""Models for the loader's tests, written byte by byte so that they can be wrong or odd."""

import json
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from p2pcache.loader.format.dtypes import BITS
from p2pcache.loader.source.base import Range, SourceStats
from p2pcache.loader.source.directory import DirectorySource


class Spec(NamedTuple):
    """One tensor to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        bits = BITS[self.dtype]
        for length in self.shape:
            bits *= length
        return bits // 8


def payload(spec: Spec, seed: int = 0) -> bytes:
    """The tensor's bytes, equal in each call; a bool is 0 or 1."""
    generator = torch.Generator().manual_seed(hash((spec.nbytes, seed)) & 0xFFFF)
    top = 2 if spec.dtype == "BOOL" else 256
    data = torch.randint(0, top, (spec.nbytes,), dtype=torch.uint8, generator=generator)
    return bytes(data.numpy())


def write(path: Path, specs: Sequence[Spec], *, pad: int = 0, seed: int = 0) -> dict[str, bytes]:
    """Write a file with tensors in the order of `specs`; `pad` blanks after the header make offsets odd."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "file": path.name}}
    body: dict[str, bytes] = {}
    position = 0
    for index, spec in enumerate(specs):
        data = payload(spec, seed + index)
        table[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
        body[spec.name] = data
    header = json.dumps(table).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(body.values()))
    return body


def write_raw(
    path: Path, header: str | bytes, data: bytes = b"", length: int | None = None
) -> Path:
    """Write a file with the given header, right or wrong."""
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    """Write an index under the usual name."""
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def torch_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's memory."""
    flat = tensor.detach().cpu().contiguous()
    return bytes(flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy())


class SlowSource(DirectorySource):
    """A directory whose bytes arrive when the test says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.arrived: list[Range] = []
        self.demanded: list[Range] = []
        self.wanted: list[Range] = []
        self.waits: list[list[Range]] = []
        self.error: Exception | None = None
        self._news = threading.Condition()

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return False

    def arrive(self, path: str, start: int, end: int) -> None:
        with self._news:
            self.arrived.append(Range(path, start, end))
            self._news.notify_all()

    def fail(self, error: Exception) -> None:
        with self._news:
            self.error = error
            self._news.notify_all()

    def available(self, path: str, start: int, end: int) -> bool:
        with self._news:
            position = start
            for r in sorted(r for r in self.arrived if r.path == path):
                if r.start <= position < r.end:
                    position = r.end
            return position >= end

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        assert self.available(path, start, start + sum(map(len, into))), "read before it arrived"
        super().read(path, start, into)

    def on_planned(self, ranges: Sequence[Range]) -> None:
        self.wanted += ranges

    def demand(self, path: str, start: int, end: int) -> None:
        self.demanded.append(Range(path, start, end))

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        self.waits.append(list(ranges))
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                if self.error is not None:
                    raise self.error
                there = [i for i, r in enumerate(ranges) if self.available(*r)]
                left = deadline - time.monotonic()
                if there or left <= 0:
                    return there
                self._news.wait(left)

    def stats(self) -> SourceStats:
        return SourceStats(bytes_peers=300, bytes_origin=100, verified_chunks=7, digest="d" * 64)


@contextmanager
def soon(seconds: float = 60.0) -> Iterator[None]:
    """Fail unless the block ends in time."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def reader_threads() -> list[str]:
    """Names of the loader's threads that still run after a while."""
    deadline = time.monotonic() + 30
    while True:
        names = [t.name for t in threading.enumerate() if t.name.startswith("p2pcache")]
        if not names or time.monotonic() > deadline:
            return names
        time.sleep(0.01)

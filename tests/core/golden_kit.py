"""The golden files: inputs anybody can make again, and what format v1 makes of them.

Bytes are BLAKE3's extendable output of a seed text, so they need no file and no language.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from p2pcache.core.format.chunking import cut, safetensors_header_bytes, safetensors_starts
from p2pcache.core.format.manifest import Chunk, Manifest, make_file, make_manifest

FOLDER = Path(__file__).parent / "golden"
NAMES = sorted(p.name for p in FOLDER.glob("*.json"))


class Golden(NamedTuple):
    """One golden file."""

    files: dict[str, bytes]
    manifest: bytes
    digest: str
    blobs: dict[str, str]


def load(name: str) -> Golden:
    """Read a golden file and make its inputs."""
    stored = json.loads((FOLDER / name).read_text())
    files = {path: content(spec) for path, spec in stored["files"].items()}
    return Golden(files, stored["manifest"].encode(), stored["digest"], stored["blobs"])


def content(spec: Mapping[str, Any]) -> bytes:
    """A file's bytes: `text`, then (as a safetensors header) `header`, then `seed` stretched."""
    data: bytes = spec.get("text", "").encode()
    if "header" in spec:
        header = spec["header"].encode()
        data += struct.pack("<Q", len(header)) + header
    if "seed" in spec:
        data += blake3(spec["seed"].encode()).digest(length=spec["bytes"])
    return data * int(spec.get("times", 1))


def index(files: Mapping[str, bytes]) -> Manifest:
    """Format v1 by the pure functions alone."""
    return make_manifest(make_file(p, _chunks(p, d)) for p, d in files.items())


def _chunks(path: str, data: bytes) -> list[Chunk]:
    starts: list[int] = []
    length = safetensors_header_bytes(data[:8], len(data))
    if path.endswith(".safetensors") and length is not None:
        starts = safetensors_starts(data[8 : 8 + length], len(data))
    chunks, offset = [], 0
    for size in cut(len(data), starts):
        chunks.append(Chunk(size, blake3(data[offset : offset + size]).digest()))
        offset += size
    return chunks

"""Models made of seeded random bytes, and the check that a copy equals its source."""

import json
import os
import random
import struct
from pathlib import Path

from blake3 import blake3

SLICE_BYTES = 1 << 20  # of writing and comparing: stays in the CPU's cache
TENSOR_BYTES = 32 << 20  # a mid-size layer: several chunks each, as in real checkpoints


def make_model(folder: Path, size_bytes: int, *, shards: int = 4, seed: int = 0) -> Path:
    """Write a model that looks like a Hugging Face snapshot; the same arguments give the same bytes.

    Args:
        folder: created; must be empty or absent.
        size_bytes: bytes of all shards together, headers included.
        shards: number of `.safetensors` files.
        seed: another seed gives other weights.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [size_bytes // shards] * shards
    sizes[-1] += size_bytes - sum(sizes)
    names: dict[str, str] = {}
    for number, size in enumerate(sizes):
        name = (
            "model.safetensors"
            if shards == 1
            else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        )
        for tensor in _write_shard(folder / name, size, f"{seed}/{number}", number):
            names[tensor] = name
    index = {"metadata": {"total_size": size_bytes}, "weight_map": names}
    _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", {"model_type": "random", "hidden_size": 4096, "seed": seed})
    _write_json(folder / "tokenizer_config.json", {"model_max_length": 8192})
    (folder / "tokenizer").mkdir(exist_ok=True)
    words = random.Random(seed)
    merges = "\n".join(f"{words.getrandbits(40):x} {words.getrandbits(40):x}" for _ in range(4000))
    (folder / "tokenizer" / "merges.txt").write_text(merges)
    (folder / "tokenizer" / "added_tokens.json").write_bytes(b"")
    return folder


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def _write_shard(path: Path, size_bytes: int, seed: str, number: int) -> list[str]:
    """One valid safetensors file of exactly `size_bytes`; returns its tensors' names."""
    count = max(1, round(size_bytes / TENSOR_BYTES))
    names = [f"model.layers.{number * 1000 + i}.mlp.weight" for i in range(count)]
    # Offsets change the header's length, so the header gets a fixed room, padded by spaces.
    room = -(-(64 + 128 * count) // 8) * 8
    data_bytes = size_bytes - 8 - room
    if data_bytes < count:
        raise ValueError(f"a shard of {size_bytes} bytes is too small; use fewer shards")
    cuts = [data_bytes * i // count for i in range(count + 1)]
    table: dict[str, object] = {"__metadata__": {"format": "pt"}} | {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, begin, end in zip(names, cuts, cuts[1:], strict=False)
    }
    header = json.dumps(table, separators=(",", ":")).encode().ljust(room)
    stream = blake3(seed.encode())
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for offset in range(0, data_bytes, SLICE_BYTES):
            length = min(SLICE_BYTES, data_bytes - offset)
            file.write(stream.digest(length=length, seek=offset))
    return names


def files_of(folder: Path) -> dict[str, int]:
    """Every file below `folder`: relative path and size in bytes."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def total_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(files_of(folder).values())


def check_tree(copy: Path, source: Path) -> int:
    """Compare two folders byte for byte, both ways.

    Returns:
        How many files are equal.

    Raises:
        AssertionError: the first difference, with file and offset.
    """
    ours, theirs = files_of(copy), files_of(source)
    if ours.keys() != theirs.keys():
        missing, extra = theirs.keys() - ours.keys(), ours.keys() - theirs.keys()
        raise AssertionError(f"{copy}: missing {sorted(missing)}, unexpected {sorted(extra)}")
    buffers = bytearray(SLICE_BYTES), bytearray(SLICE_BYTES)
    for name, size in theirs.items():
        if ours[name] != size:
            raise AssertionError(f"{copy / name}: {ours[name]} bytes, the source has {size}")
        _compare(copy / name, source / name, *buffers)
    return len(theirs)


def _compare(one: Path, two: Path, left: bytearray, right: bytearray) -> None:
    with one.open("rb", buffering=0) as a, two.open("rb", buffering=0) as b:
        offset = 0
        while count := a.readinto(left):
            if b.readinto(right) != count or not _equal(left, right, count):
                raise AssertionError(f"{one}: differs from {two} at or after byte {offset}")
            offset += count


def _equal(left: bytearray, right: bytearray, count: int) -> bool:
    """Of their first `count` bytes; whole buffers aren't copied for it."""
    return left == right if count == SLICE_BYTES else left[:count] == right[:count]


def corrupt_file(path: Path, offset: int) -> None:
    """Flip the bits of one byte."""
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, offset)[0]
        os.pwrite(fd, bytes([byte ^ 0xFF]), offset)
    finally:
        os.close(fd)

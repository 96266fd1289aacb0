"""Signs that a directory is only a part of a model."""

import json
import struct
from pathlib import Path

import pytest

from p2pcache.errors import NotFound
from p2pcache.io.files.completeness import signs_of_a_part
from p2pcache.io.files.indexing import find_files

HEADER = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
TENSORS = struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)
EMPTY = struct.pack("<Q", 2) + b"{}"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


def index(*names: str) -> bytes:
    table = {"metadata": {}, "weight_map": {f"t{i}": name for i, name in enumerate(names)}}
    return json.dumps(table).encode()


def signs(folder: Path, files: dict[str, bytes]) -> list[str]:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return signs_of_a_part(find_files(folder))


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": TENSORS, "none.safetensors": EMPTY, "config.json": b"{}"},
        {"a.index.json": index("a.bin"), "a.bin": b"1", "deep/b.index.json": index("b"), "deep/b": b"2"},
        {"m-00001-of-00002.gguf": b"1", "m-00002-of-00002.gguf": b"2"},
        {"m-00000-of-00002.bin": b"1", "m-00001-of-00002.bin": b"2"},
        {"x.index.json": b"not json", "y.index.json": b"[1]", "z.index.json": b'{"weight_map": 3}'},
        {"notes": b"version 2 of the notes, long enough to be looked at by anybody who cares"},
    ],
)  # fmt: skip
def test_a_whole_model_has_none(tmp_path: Path, files: dict[str, bytes]) -> None:
    assert signs(tmp_path, files) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"deep/m.index.json": index("a.bin", "b.bin"), "a.bin": b"1"}, "deep/a.bin is missing (and 1 more)"),
        ({"m-00001-of-00003.gguf": b"1", "m-00003-of-00003.gguf": b"1"}, "m-00002-of-00003.gguf is missing:"),
        ({"m.safetensors.incomplete": b"1"}, "m.safetensors.incomplete is a part of a download"),
        ({"m.safetensors": TENSORS[:-1]}, "m.safetensors isn't a whole safetensors file"),
        ({"m.safetensors": TENSORS[:20]}, "m.safetensors isn't a whole"),
        ({"m.safetensors": b""}, "m.safetensors isn't a whole"),
        ({"m.safetensors": POINTER}, "m.safetensors is Git LFS's pointer"),
        ({"tokenizer.json": POINTER}, "tokenizer.json is Git LFS's pointer"),
    ],
)  # fmt: skip
def test_a_part_has_one(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    found = signs(tmp_path, files)
    assert len(found) == 1
    assert found[0].startswith(said)


def test_what_an_index_and_a_count_both_miss_is_said_once(tmp_path: Path) -> None:
    one, two = "m-00001-of-00002.bin", "m-00002-of-00002.bin"
    assert len(signs(tmp_path, {"m.index.json": index(one, two), one: b"1"})) == 1


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="config"):
        signs_of_a_part({"config.json": tmp_path / "none"})

"""Which files hold tensors, and one table over all of them."""

import json

import pytest

from p2pcache.errors import InvalidHeader, NotFound, UsageError
from p2pcache.loader.format.header import Header, TensorInfo
from p2pcache.loader.format.index import find_index, merge, natural, parse_index, weight_files

INDEX = "model.safetensors.index.json"


def header(path: str, *names: str) -> Header:
    infos = {n: TensorInfo(n, "U8", (1,), path, 10 + i, 11 + i) for i, n in enumerate(names)}
    return Header(infos, {}, 10)


def test_a_single_file() -> None:
    files = {"model.safetensors": 9, "config.json": 1, "model.Q4_K_M.gguf": 9}
    assert find_index(files, "m") is None
    assert weight_files(files, None, "m") == ["model.safetensors"]


def test_shards_in_natural_order() -> None:
    files = [f"model-{i}-of-12.safetensors" for i in range(1, 13)]
    assert weight_files(reversed(files), None, "m") == files
    assert natural("a10") > natural("a9")
    assert sorted(["²1", "1", "a"], key=natural)  # odd digits are no numbers


def test_the_index_chooses_the_files() -> None:
    weight_map = {"a": "x-2.safetensors", "b": "x-1.safetensors"}
    files = {"x-1.safetensors": 1, "x-2.safetensors": 1, "other.safetensors": 1, INDEX: 5}
    assert find_index(files, "m") == INDEX
    data = json.dumps({"weight_map": weight_map}).encode()
    assert parse_index(data, files, INDEX) == weight_map
    assert weight_files(files, weight_map, "m") == ["x-1.safetensors", "x-2.safetensors"]


def test_of_several_indexes_one_must_have_the_usual_name() -> None:
    usual = {INDEX: 1, "consolidated.safetensors.index.json": 1}
    assert find_index(usual, "m") == INDEX
    with pytest.raises(UsageError, match="several indexes"):
        find_index({"a.safetensors.index.json": 1, "b.safetensors.index.json": 1}, "m")
    assert find_index({f"sub/{INDEX}": 1}, "m") is None
    with pytest.raises(InvalidHeader, match="too large"):
        find_index({INDEX: 1 << 40}, "m")


def test_variants_of_a_file_are_left_to_who_asks_for_them() -> None:
    files = ["unet/m.fp16.safetensors", "unet/m.safetensors", "unet/m.non_ema.safetensors"]
    assert weight_files(files, None, "m") == ["unet/m.safetensors"]
    assert weight_files(files[::2], None, "m") == sorted(files[::2])  # variants of nothing here
    parts = ["v1.5.safetensors", "v1.6.safetensors"]
    assert weight_files(parts, None, "m") == parts


def test_consolidated_doubles_and_subdirectories() -> None:
    both = ["model.safetensors", "consolidated.00.safetensors", "onnx/m.safetensors"]
    assert weight_files(both, None, "m") == ["model.safetensors"]
    assert weight_files(both[1:], None, "m") == ["consolidated.00.safetensors"]
    assert weight_files(both[2:], None, "m") == ["onnx/m.safetensors"]
    with pytest.raises(NotFound, match=r"no .safetensors"):
        weight_files(["a.gguf"], None, "m")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"weight_map":[]}',
        b'{"weight_map":{"a":1}}',
        b'{"weight_map":{"a":"../../etc/passwd"}}',
        b'{"weight_map":{"a":"/etc/passwd"}}',
        b'{"weight_map":{"a":"absent.safetensors"}}',
        b"\xff\xfe",
    ],
)
def test_a_bad_index_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidHeader):
        parse_index(data, {"m.safetensors": 1}, INDEX)


def test_names_in_two_files_need_an_index() -> None:
    two = {"1": header("1", "a", "b"), "2": header("2", "b", "c")}
    with pytest.raises(InvalidHeader, match="'b' is in 1 and in 2"):
        merge(two, None, "m")
    table = merge(two, {"b": "2"}, "m")
    assert list(table) == ["a", "b", "c"]
    assert table["b"].path == "2"


def test_an_index_that_names_missing_tensors_is_refused() -> None:
    with pytest.raises(InvalidHeader, match="'c'"):
        merge({"1": header("1", "a")}, {"a": "1", "c": "1"}, "m")

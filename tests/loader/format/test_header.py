"""Untrusted headers: right ones read as by the safetensors library, wrong ones refused."""

import json
import struct
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.errors import IntegrityError, InvalidHeader
from p2pcache.loader.format.dtypes import BITS
from p2pcache.loader.format.header import MAX_HEADER_BYTES, header_bytes, parse
from tests.loader.loader_kit import Spec, write, write_raw

A = '{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'


def obj(**entries: str) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in entries.items()) + "}"


def entry(dtype: object = "U8", shape: object = (8,), offsets: object = (0, 8)) -> str:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def test_a_good_header(tmp_path: Path) -> None:
    write(
        tmp_path / "m", [Spec("b", "F32", (2, 3)), Spec("a", "I8", ()), Spec("z", "BF16", (0, 4))]
    )
    data = (tmp_path / "m").read_bytes()
    length = header_bytes(data[:8], len(data), "m")
    header = parse(data[8 : 8 + length], len(data), "m")
    assert list(header.tensors) == ["b", "a", "z"]
    b = header.tensors["b"]
    assert (b.dtype, b.shape, b.start - header.data_start, b.nbytes) == ("F32", (2, 3), 0, 24)
    assert header.tensors["z"].nbytes == 0
    assert header.metadata["format"] == "pt"


@pytest.mark.parametrize("metadata", ["null", "{}"])
def test_metadata_may_be_null_or_empty(metadata: str) -> None:
    text = obj(__metadata__=metadata, a=A).encode()
    assert parse(text, 8 + len(text) + 8, "m").metadata == {}


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_every_dtype_of_safetensors_is_known(dtype: str) -> None:
    nbytes = BITS[dtype]
    header = parse(
        entry(dtype, [8], [0, nbytes]).encode(),
        8 + len(entry(dtype, [8], [0, nbytes])) + nbytes,
        "m",
    )
    assert header.tensors["a"].nbytes == nbytes


BAD: dict[str, str | bytes] = {
    "not json": "{",
    "not an object": "[]",
    "a constant": '{"a":NaN}',
    "a deep nest": "[" * 100_000,
    "a long number": '{"a":' + "9" * 5000 + "}",
    "twice": obj(a=A)[:-1] + f',"a":{A}}}',
    "twice inside": '{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
    "an overlap": obj(a=A, b='{"dtype":"U8","shape":[4],"data_offsets":[4,8]}'),
    "the same bytes": obj(a=A, b=A),
    "a gap": obj(a=A, b='{"dtype":"U8","shape":[0],"data_offsets":[9,9]}'),
    "a gap at first": entry(shape=[7], offsets=[1, 8]),
    "bytes left over": entry(shape=[7], offsets=[0, 7]),
    "past the end": entry(shape=[9], offsets=[0, 9]),
    "backwards": entry(shape=[0], offsets=[8, 0]),
    "negative": entry(offsets=[-8, 0]),
    "negative shape": entry(shape=[-2, -4]),
    "wrong size": entry(shape=[9]),
    "huge shape": entry(shape=[1 << 61, 1 << 61, 0, 8]),
    "overflowing shape": entry(shape=[1 << 32, 1 << 32, 8]),
    "huge number": entry(shape=[1 << 70], offsets=[0, 1 << 70]),
    "fraction": entry(shape=[8.0]),
    "boolean": entry(shape=[True, 8]),
    "unknown dtype": entry(dtype="F128"),
    "no dtype": '{"a":{"shape":[8],"data_offsets":[0,8]}}',
    "dtype is a list": entry(dtype=["U8"]),
    "entry is a list": '{"a":[1,2]}',
    "three offsets": entry(offsets=[0, 4, 8]),
    "too many dims": entry(shape=[1] * 65 + [8]),
    "half a byte": entry(dtype="F4", shape=[3], offsets=[0, 8]),
    "metadata of numbers": obj(__metadata__='{"a":1}', a=A),
    "metadata is a list": obj(__metadata__="[]", a=A),
    "not unicode": b'{"\xff\xfe":1}',
    "empty": "",
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_a_bad_header_is_refused(why: str) -> None:
    header = BAD[why]
    data = header.encode() if isinstance(header, str) else header
    with pytest.raises(InvalidHeader) as info:
        parse(data, 8 + len(data) + 8, "m.safetensors")
    message = str(info.value)
    assert message.startswith("m.safetensors: ")
    assert "\n" not in message
    assert len(message) < 500
    assert isinstance(info.value, IntegrityError)


@pytest.mark.parametrize(
    ("first", "size"),
    [
        (b"", 0),
        (b"1234567", 7),
        (struct.pack("<Q", 1), 100),
        (struct.pack("<Q", 93), 100),
        (struct.pack("<Q", 2**64 - 1), 100),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), 10 * MAX_HEADER_BYTES),
    ],
)
def test_a_bad_length_is_refused(first: bytes, size: int) -> None:
    with pytest.raises(InvalidHeader):
        header_bytes(first, size, "m")


def test_many_repeated_names_are_refused_quickly() -> None:
    names = ",".join(f'"{i}":0' for i in range(200_000))
    with pytest.raises(InvalidHeader, match="twice"):
        parse(f'{{{names},"199999":0}}'.encode(), 1 << 30, "m")


@given(st.binary(max_size=200))
def test_garbage_never_crashes(garbage: bytes) -> None:
    with pytest.raises(InvalidHeader):
        parse(garbage, 7, "m")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]),
                        inner, max_size=3)))  # fmt: skip
def test_any_json_is_refused_or_read(document: object) -> None:
    data = json.dumps(document).encode()
    try:
        parse(data, 8 + len(data), "m")
    except InvalidHeader:
        return


@pytest.mark.parametrize("why", [k for k, v in BAD.items() if isinstance(v, str)])
def test_we_refuse_all_that_the_library_refuses(why: str, tmp_path: Path) -> None:
    """We also refuse repeated names, of which the library takes the last."""
    header = BAD[why]
    assert isinstance(header, str)
    path = write_raw(tmp_path / "m", header, b"\0" * 8)
    if why.startswith("twice") or why in ("boolean", "a long number", "too many dims"):
        return
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "np")

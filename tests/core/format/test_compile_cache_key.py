"""The key of a compile cache, its note, and who may bring programs."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format import compile_cache_key as cc
from p2pcache.core.format.manifest import File, Manifest, make_manifest
from p2pcache.errors import IntegrityError, NotAllowed, UsageError
from p2pcache.ids import Ref

VALUES = {name: f"{name}-1" for name in cc.FIELDS}
KEY = cc.make_key(VALUES, {"tensor_parallel_size": "2", "quantization": "fp8"})
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=cc.MAX_TEXT)


def manifest(*paths: str) -> Manifest:
    return make_manifest([File(path, 0, array("I"), b"") for path in paths])


def test_any_field_changes_the_name_and_the_order_of_extras_does_not() -> None:
    names = {KEY.digest, cc.make_key(VALUES, {}).digest}
    for field in cc.FIELDS:
        names.add(cc.make_key(VALUES | {field: "other"}, KEY.extra).digest)
    assert len(names) == 2 + len(cc.FIELDS)
    turned = cc.make_key(VALUES, dict(reversed(KEY.extra.items())))
    assert turned.digest == KEY.digest
    ref = cc.cache_ref(Ref.parse("team/llama:v3"), KEY)
    assert ref.short == f"team/llama-cc:{KEY.digest}"
    assert cc.cache_ref(Ref.parse("llama"), KEY, "caches").namespace == "caches"
    with pytest.raises(UsageError):
        cc.cache_ref(Ref.parse("n" * 79), KEY)


def test_the_name_of_a_key_is_for_ever() -> None:
    """If this changes, every stored cache is lost: then it should be on purpose."""
    assert KEY.digest == "2b237c76f80b74b5e2ca6b5b88fd8db8fa246f0c6e86bede830b6682afa7c37b"


@given(st.dictionaries(st.sampled_from(cc.FIELDS), PRINTABLE), st.dictionaries(
    st.from_regex(r"\A[a-z][a-z0-9_]{0,20}\Z"), PRINTABLE, max_size=4))  # fmt: skip
def test_a_note_comes_back_as_it_was(values: dict[str, str], extra: dict[str, str]) -> None:
    key = cc.make_key(VALUES | values, extra)
    note = cc.decode_note(cc.encode_note(key, {"a/b.so": 7}))
    assert note.key == key
    assert note.key.digest == key.digest
    assert note.mtimes == {"a/b.so": 7}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"key": {}}, {"mtimes": {"a": -1}}, {"mtimes": {"a": 1 << 62}},
        {"more": 1}, {"mtimes": []}, {"key": VALUES | {"engine": "x" * 201}},
        {"key": VALUES | {"engine": "a\nb"}}, {"key": VALUES | {"extra": {"A": "b"}}},
        {"key": VALUES | {"extra": {f"n{i}": "" for i in range(33)}}},
    ],
)  # fmt: skip
def test_hostile_notes_are_refused(change: dict[str, object]) -> None:
    good = json.loads(cc.encode_note(KEY, {}))
    with pytest.raises(IntegrityError):
        cc.decode_note(json.dumps(good | change).encode())


@given(st.binary(max_size=200))
def test_noise_is_no_note(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        cc.decode_note(data)


def test_nesting_and_size_have_limits() -> None:
    for data in (b"[" * 100_000, b" " * (cc.MAX_NOTE_BYTES + 1)):
        with pytest.raises(IntegrityError):
            cc.decode_note(data)


def test_values_that_no_key_has() -> None:
    for values, extra in (
        ({"engine": "a\x1b[31m"}, {}), ({"torch": "x" * 201}, {}), ({}, {"Bad name": "1"}),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            cc.make_key(VALUES | values, extra)
    with pytest.raises(UsageError):
        cc.make_key({"engine": "vllm"}, {})


def test_differences_are_named() -> None:
    other = cc.make_key(VALUES | {"device": "NVIDIA A100"}, {"quantization": "fp8"})
    assert cc.differences(KEY, KEY) == []
    assert cc.differences(KEY, other) == [
        "device is 'device-1' here and 'NVIDIA A100' there",
        "extra tensor_parallel_size is '2' here and '' there",
    ]
    assert len(cc.differences(other, KEY)) == 2


def test_programs_come_only_from_named_namespaces() -> None:
    cache, model = manifest(cc.NOTE, "a.so"), manifest("a.so")
    cc.permit_programs("", Ref.parse("team/m"), model)
    cc.permit_programs("", Ref.parse("team/m"), None)
    cc.permit_programs("other, team", Ref.parse("team/m-cc"), cache)
    for named in ("", "*", "teams", "tea", "library", "Team"):
        with pytest.raises(NotAllowed, match="compile_cache_namespaces in \\[agent\\]"):
            cc.permit_programs(named, Ref.parse("team/m-cc"), cache)
    with pytest.raises(NotAllowed, match="leave the digest out"):
        cc.permit_programs("team", Ref.parse(f"team/m-cc@blake3:{'0' * 64}"), cache)
    with pytest.raises(NotAllowed):  # under whatever name
        cc.permit_programs("", Ref.parse("team/weights"), cache)

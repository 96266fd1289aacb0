"""Format v1 byte for byte: golden files, round trips, and hostile manifests."""

import hashlib
import json
import random
from array import array
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format import manifest as module
from p2pcache.core.format.manifest import (
    Chunk,
    File,
    Manifest,
    blob_id,
    check_path,
    decode,
    digest_of,
    encode,
    files_with,
    make_file,
    make_manifest,
)  # fmt: skip
from p2pcache.errors import InvalidManifest
from tests.core import golden_kit


@pytest.mark.parametrize("name", golden_kit.NAMES)
def test_golden(name: str) -> None:
    golden = golden_kit.load(name)
    manifest = golden_kit.index(golden.files)
    assert encode(manifest) == golden.manifest
    assert digest_of(golden.manifest) == golden.digest
    assert {f.path: f.blob_id for f in manifest.files} == golden.blobs
    assert decode(golden.manifest, golden.digest) == manifest


def test_there_are_golden_files() -> None:
    assert golden_kit.NAMES == ["chunks.json", "safetensors.json", "small.json"]


@pytest.mark.parametrize("name", golden_kit.NAMES)
def test_the_format_is_what_the_page_says(name: str) -> None:
    """Built with the standard library from the words of docs/format.md alone."""
    golden = golden_kit.load(name)
    files = []
    for path in sorted(golden.files, key=str.encode):
        chunks = list(next(f for f in decode(golden.manifest).files if f.path == path).chunks)
        files.append(
            {"path": path, "size": len(golden.files[path]), "lengths": [c.length for c in chunks],
             "digests": "".join(c.digest.hex() for c in chunks)}
        )  # fmt: skip
        blob = b"".join(c.length.to_bytes(4, "little") + c.digest for c in chunks)
        assert blake3(b"p2pcache.blob.v1\n" + blob).hexdigest() == golden.blobs[path]
    text = json.dumps({"format": "p2pcache.manifest.v1", "files": files}, ensure_ascii=False,
                      separators=(",", ":"))  # fmt: skip
    assert text.encode() == golden.manifest
    assert blake3(text.encode()).hexdigest() == golden.digest


parts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\\"),
    min_size=1, max_size=12,
)  # fmt: skip
chunks = st.builds(Chunk, st.integers(1, 64 << 20), st.binary(min_size=32, max_size=32))
files = st.builds(
    make_file, st.lists(parts, min_size=1, max_size=4).map("/".join), st.lists(chunks, max_size=5)
)


@given(st.lists(files, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_round_trip(listed: list[File], dice: random.Random) -> None:
    try:
        manifest = make_manifest(listed)
    except InvalidManifest:
        return
    encoded = encode(manifest)
    assert decode(encoded, digest_of(encoded)) == manifest
    shuffled = list(listed)
    dice.shuffle(shuffled)
    assert encode(make_manifest(shuffled)) == encoded


@given(st.lists(files, min_size=1, max_size=4), st.data())
def test_a_changed_byte_is_never_the_same_model(listed: list[File], data: st.DataObject) -> None:
    try:
        encoded = encode(make_manifest(listed))
    except InvalidManifest:
        return
    changed = bytearray(encoded)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidManifest):
        decode(bytes(changed), digest_of(encoded))
    try:
        other = decode(bytes(changed))
    except InvalidManifest:
        return
    assert encode(other) == bytes(changed), "one manifest, one spelling"


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_one_error(data: bytes) -> None:
    with pytest.raises(InvalidManifest):
        decode(data)


ONE = "00" * 32


def record(**changes: Any) -> dict[str, Any]:
    return {"path": "a", "size": 3, "lengths": [3], "digests": ONE} | changes


def text(*records: dict[str, Any], **head: Any) -> bytes:
    whole = {"format": module.FORMAT, "files": list(records)} | head
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def paths(*names: str) -> bytes:
    return text(*(record(path=n) for n in names))


HOSTILE = {
    "nothing": (b"", "not a manifest"),
    "a list": (b"[]", "not a manifest"),
    "deep nesting": (b"[" * 100_000, "not a manifest"),
    "not UTF-8": (b'{"format":"\xff"}', "not a manifest"),
    "another format": (text(record(), format="tar"), "not a manifest"),
    "a newer format": (text(record(), format="p2pcache.manifest.v2"), "upgrade p2pcache"),
    "no files": (text(), "at least one file"),
    "an unknown key": (text(record(mode=0o777)), "not a manifest"),
    "an unknown head": (text(record(), owner="me"), "not a manifest"),
    "a missing key": (b'{"format":"p2pcache.manifest.v1","files":[{"path":"a"}]}', "not a manif"),
    "white space": (text(record()) + b"\n", "canonical"),
    "an escape too many": (text(record()).replace(b'"a"', b'"\\u0061"'), "canonical"),
    "another order of keys": (
        b'{"files":[{"path":"a","size":3,"lengths":[3],"digests":"' + ONE.encode()
        + b'"}],"format":"p2pcache.manifest.v1"}', "canonical",
    ),
    "a repeated key": (text(record()).replace(b'"size":3', b'"size":4,"size":3'), "canonical"),
    "upper-case hex": (text(record(digests="AB" * 32)), "canonical"),
    "a float size": (text(record(size=3.0)), "."),
    "a huge float": (text(record()).replace(b":3,", b":1e400,"), "."),
    "a string size": (text(record(size="3")), "not a manifest"),
    "hex of the wrong length": (text(record(digests=ONE[:-2])), "pair up"),
    "half a hex digit": (text(record(digests=ONE[:-1])), "bad chunk list"),
    "spaces in hex": (text(record(digests=ONE[:-2] + " 0 0")), "."),
    "no hex": (text(record(digests="zz" * 32)), "bad chunk list"),
    "a length of zero": (text(record(size=0, lengths=[0])), "empty or over"),
    "a negative length": (text(record(size=-1, lengths=[-1])), "bad chunk list"),
    "lengths that cancel": (text(record(lengths=[4, -1], digests=ONE * 2)), "bad chunk list"),
    "a length over 64 MiB": (text(record(size=(64 << 20) + 1, lengths=[(64 << 20) + 1])), "over 64"),
    "a length over 32 bits": (text(record(size=1 << 32, lengths=[1 << 32])), "bad chunk list"),
    "a length over 64 bits": (text(record(size=1 << 70, lengths=[1 << 70])), "."),
    "a wrong sum": (text(record(size=4)), "add up"),
    "a size without chunks": (text(record(lengths=[], digests="")), "add up"),
    "a negative size": (text(record(size=-3, lengths=[], digests="")), "add up"),
    "unsorted": (paths("b", "a"), "ascending"),
    "twice the same": (paths("a", "a"), "ascending"),
    "sorted by letter, not byte": (paths("a", "\U00010000", "\uffff"), "ascending"),
    "absolute": (paths("/etc/passwd"), "absolute"),
    "parent": (paths("../x"), "not normalised"),
    "parent inside": (paths("a/../../x"), "not normalised"),
    "dot": (paths("./a"), "not normalised"),
    "only a dot": (paths("."), "not normalised"),
    "double slash": (paths("a//b"), "not normalised"),
    "trailing slash": (paths("a/"), "not normalised"),
    "empty path": (paths(""), "empty or too long"),
    "backslash": (paths("..\\x"), "control character or a backslash"),
    "null": (paths("a\0b"), "control character"),
    "newline": (paths("a\nb"), "control character"),
    "escape sequence": (paths("\x1b[2J"), "control character"),
    "C1 control": (paths("a\x9bb"), "control character"),
    "turned direction": (paths("a\u202egpj.exe"), "control character"),
    "line separator": (paths("a\u2028b"), "control character"),
    "a part of 256 bytes": (paths("x" * 256), "too long"),
    "a part of 256 bytes in few letters": (paths("é" * 128), "too long"),
    "a path of 1025 bytes": (paths("/".join(["x" * 204] * 5) + "/"), "too long"),
    "case": (paths("README", "readme"), "same name on some"),
    "sharp s": (paths("STRASSE", "straße"), "same name on some"),
    "composed and not": (paths("e\u0301", "\u00e9"), "same name on some"),
    "ligature": (paths("fi", "\ufb01"), "same name on some"),
    "folders by case": (paths("A/x", "a/y"), "same name on some"),
    "file and folder": (paths("a", "a/b"), "both a file and a folder"),
    "file and folder by case": (paths("A", "a/b"), "both a file and a folder"),
    "a lone surrogate": (text(record()).replace(b'"a"', b'"\\ud800"'), "."),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifests(case: str) -> None:
    data, reason = HOSTILE[case]
    with pytest.raises(InvalidManifest, match=reason) as refused:
        decode(data)
    message = str(refused.value)
    assert message.isprintable(), "nothing from the manifest may steer a terminal"
    assert len(message) < 600


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    monkeypatch.setattr(module, "MAX_CHUNKS", 3)
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 700)
    decode(paths("a", "b"))
    with pytest.raises(InvalidManifest, match="3 files are over"):
        decode(paths("a", "b", "c"))
    with pytest.raises(InvalidManifest, match="4 chunks are over"):
        decode(text(record(size=4, lengths=[1] * 4, digests=ONE * 4)))
    with pytest.raises(InvalidManifest, match="over the limit of 256 MiB"):
        decode(paths("a" * 255, "b" * 255, "c" * 255))


def test_a_wrong_digest_is_found_before_anything_is_parsed() -> None:
    with pytest.raises(InvalidManifest, match="doesn't match its digest"):
        decode(b"not even JSON", "ab" * 32)


@pytest.mark.parametrize(
    "path",
    ["a", "a/b", "a b", "...", "..a", "a..", ".hidden", "@x", "ü☃", "a:b", "x" * 255,
     "/".join(["y" * 203] * 5), "-rf", "con", "~", "$HOME", "*"],
)  # fmt: skip
def test_legal_paths(path: str) -> None:
    check_path(path)


def test_a_million_chunks_stay_small() -> None:
    lengths = array("I", [1]) * 100_000
    many = Manifest((File("a", 100_000, lengths, bytes(3_200_000)),))
    encoded = encode(many)
    assert decode(encoded) == many
    assert blob_id([]) == make_file("e", []).blob_id


# -- format v1.1: the SHA-256 of a file ------------------------------------------------------------

SHA = bytes(range(32))


def test_a_file_may_carry_its_sha256() -> None:
    plain = make_manifest([make_file("a", [Chunk(1, bytes(32))]), make_file("b", [])])
    known = make_manifest([make_file("a", [Chunk(1, bytes(32))], SHA), make_file("b", [])])
    encoded = encode(known)
    assert encoded.startswith(b'{"format":"p2pcache.manifest.v1.1","files":[')
    assert f'"digests":"{"00" * 32}","sha256":"{SHA.hex()}"}}'.encode() in encoded
    assert encoded.count(b"sha256") == 1  # only where it is known
    assert decode(encoded) == known
    assert encode(plain).startswith(b'{"format":"p2pcache.manifest.v1","files":[')
    assert known.files[0].blob_id == plain.files[0].blob_id  # the bytes keep their name


def test_golden_with_sha256() -> None:
    """Written with the standard library alone, from the words of docs/format.md."""
    stored = json.loads((golden_kit.FOLDER / "v1.1" / "small.json").read_text())
    golden = golden_kit.load("small.json")
    manifest = decode(stored["manifest"].encode(), stored["digest"])
    assert encode(manifest) == stored["manifest"].encode()
    for file, plain in zip(manifest.files, decode(golden.manifest).files, strict=True):
        content = hashlib.sha256(golden.files[file.path]).digest()
        assert file == plain._replace(sha256=b"" if file.path == "one" else content)


@pytest.mark.parametrize(
    "encoded",
    [
        b'{"format":"p2pcache.manifest.v1","files":[{"path":"a","size":0,"lengths":[],"digests":"","sha256":"%b"}]}',
        b'{"format":"p2pcache.manifest.v1.1","files":[{"path":"a","size":0,"lengths":[],"digests":"","sha256":"%.62b"}]}',
        b'{"format":"p2pcache.manifest.v1.1","files":[{"path":"a","size":0,"lengths":[],"sha256":"%b","digests":""}]}',
        b'{"format":"p2pcache.manifest.v1.1","files":[{"path":"a","size":0,"lengths":[],"digests":"%.0b","sha256":""}]}',
        b'{"format":"p2pcache.manifest.v1.1","files":[{"path":"a","size":0,"lengths":[],"digests":"%.0b"}]}',
    ],
    ids=["old version", "short", "order", "empty", "none"],
)
def test_a_sha256_has_one_form(encoded: bytes) -> None:
    with pytest.raises(InvalidManifest):
        decode(encoded % SHA.hex().encode())


# -- small bytes, large objects --------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.text(alphabet='ab",\\:{}[]é', min_size=1, max_size=9)
            | st.sampled_from(['x","size":1,"lengths":[', '\\"},{"path":"', '"],"digests":"']),
            st.integers(0, 3),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_a_valid_manifest_passes_the_count(files: list[tuple[str, int]]) -> None:
    made = Manifest(
        tuple(
            make_file(path, [Chunk(7, bytes(32))] * chunks, SHA[: 32 * (chunks % 2)])
            for path, chunks in files
        )
    )
    encoded = encode(made)
    head = module._HEAD.match(encoded)
    assert head is not None
    module._count(encoded, head.end())


EMPTY = b'{"path":"a","size":0,"lengths":[],"digests":""}'
HIDDEN = b'{"size":0,"path":"a","lengths":[],"digests":""}'


@pytest.mark.parametrize(
    "files",
    [
        (EMPTY + b",") * 200_000 + EMPTY + b"]}",
        b'{"path":"a","size":1,"lengths":[' + b"1," * 4_300_000 + b'1],"digests":""}]}',
        (HIDDEN + b",") * 200_000 + HIDDEN + b"]}",
        (b"[[" * 5_000_000) + b"]}",
        (EMPTY + b", ") * 200_000 + EMPTY + b"]}",
        EMPTY[:-1] + b',"lengths":[' + b"1," * 4_300_000 + b'1],"digests":""}]}',
        EMPTY + b'],"files":[' + (HIDDEN + b",") * 200_000 + HIDDEN + b"]}",
        b'{"path":"a' + b'"},' * 3_000_000 + EMPTY + b"]}",
        b'{"path":"' + b"x" * 9_000_000 + b'"',
        b" " * 9_000_000,
    ],
    ids=["files", "chunks", "order", "depth", "spaces", "again", "twice", "broken", "endless", "nothing"],
)  # fmt: skip
def test_a_bomb_is_counted_before_it_is_unpacked(
    files: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_decoder", None)  # nothing may reach it
    with pytest.raises(InvalidManifest):
        decode(b'{"format":"p2pcache.manifest.v1","files":[' + files)


def test_a_large_manifest_of_another_release_says_so() -> None:
    with pytest.raises(InvalidManifest, match="newer than this release"):
        decode(b'{"format":"p2pcache.manifest.v2","files":[' + b"1," * 5_000_000 + b"1]}")


def test_files_with_a_chunk_are_those_that_a_whole_reading_finds() -> None:
    dice = random.Random(3)
    chunks = [Chunk(dice.randrange(1, 99), dice.randbytes(32)) for _ in range(6)]
    listed = [
        make_file("both", chunks[:2]), make_file("empty", []), make_file("last", chunks[3:5]),
        make_file("none", chunks[5:]), make_file("sum", chunks[2:3], sha256=bytes(32)),
    ]  # fmt: skip
    encoded = encode(make_manifest(listed))
    wanted = {chunks[n].digest.hex() for n in (1, 2, 4)}
    assert files_with(encoded, wanted) == [listed[0], listed[2], listed[4]]
    assert files_with(encoded, {chunks[0].digest.hex()[1:] + "0"}) == []
    assert files_with(b'{"format":"p2pcache.manifest.v9","files":{}}', wanted) == []
    newer = encoded.replace(b"manifest.v1", b"manifest.v9").replace(b'"size":', b'"bytes":')
    with pytest.raises(InvalidManifest, match="newer"):
        files_with(newer, wanted)

"""Refs, node ids and digests; errors and their exit codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache import errors
from p2pcache.errors import UsageError
from p2pcache.ids import (
    Ref,
    as_written,
    format_node,
    is_digest,
    is_spelling_of,
    parse_node,
    parse_wanted,
    ref_of_hub,
    spelled,
)

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("llama", ("library", "llama", "latest", None)),
        ("llama:v3", ("library", "llama", "v3", None)),
        ("team/llama", ("team", "llama", "latest", None)),
        ("team/llama:V_3.1-rc", ("team", "llama", "V_3.1-rc", None)),
        (f"team/llama@blake3:{HEX}", ("team", "llama", "latest", HEX)),
        (f"a/b:c@blake3:{HEX}", ("a", "b", "c", HEX)),
        ("0/1:_", ("0", "1", "_", None)),
        ("Qwen/Qwen3-8B", ("qwen", "qwen3-8b", "latest", None)),
        ("A", ("library", "a", "latest", None)),
        ("Library/Llama:V3", ("library", "llama", "V3", None)),
        ("a.b-c_d", ("library", "a.b-c_d", "latest", None)),
        ("a" * 80 + "/" + "b" * 80 + ":" + "c" * 128, ("a" * 80, "b" * 80, "c" * 128, None)),
    ],
)
def test_refs(text: str, parsed: tuple[str, str, str, str | None]) -> None:
    ref = Ref.parse(text)
    assert ref == parsed
    assert Ref.parse(str(ref)) == ref
    assert Ref.parse(ref.short) == ref._replace(digest=None)


@pytest.mark.parametrize("text", [f"team/llama@blake3:{HEX}", f"a/b:c@blake3:{HEX}", "a:latest"])
def test_a_digest_needs_no_tag(text: str) -> None:
    """History and JSON wrote a tag, `latest`, that nobody had typed."""
    assert str(Ref.parse(text)) == as_written(text) == text
    assert Ref.parse(Ref.parse(text).full) == Ref.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", ":", "/", "a/", "/a", "a:", "a:.x", "a:-x", ".a", "-a", "_a", "..", "../x",
     "a/../b", "a//b", "a/b/c", "a:b:c", "a b", "a\n", "a:b\n", "a@", "a@blake3:", "a" * 81,
     "a:" + "b" * 129, f"a@sha256:{HEX}", f"a@blake3:{HEX.upper()}", f"a@blake3:{HEX[:-1]}", "ä",
     "a:@x", "a\0b", "٣"],
)  # fmt: skip
def test_not_refs(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"not a model ref.*up to 80 characters and tags of up to 128"
    ):
        Ref.parse(text)


def test_a_name_is_folded_and_its_spelling_kept() -> None:
    for text, written in (
        ("Qwen/Qwen3-8B:v1", "Qwen/Qwen3-8B"),
        (f"Qwen/Qwen3-8B@blake3:{HEX}", "Qwen/Qwen3-8B"),
        ("Library/Llama", "Llama"),
        ("team/llama:V3", "team/llama"),
    ):
        assert spelled(text) == written
        assert as_written(text).startswith(written)
        assert is_spelling_of(written, Ref.parse(text))
    assert as_written("Library/Llama") == "Llama:latest"
    assert as_written(f"Q/M:V1@blake3:{HEX}") == f"Q/M:V1@blake3:{HEX}"
    assert as_written(f"Q/M@blake3:{HEX}") == f"Q/M@blake3:{HEX}", "no tag was asked for"
    assert Ref.parse("Qwen/Qwen3-8B").full_name == "qwen/qwen3-8b"
    # A sign whose lower case is a plain letter: Kelvin's.
    for text in ("team/other", "qwen/qwen3-8b:v1", "../qwen", "\u212aimi"):
        assert not is_spelling_of(text, Ref.parse("Qwen/Qwen3-8B"))
    assert not is_spelling_of("\u212aimi", Ref.parse("kimi"))


def test_a_long_wrong_ref_is_not_repeated_whole() -> None:
    with pytest.raises(UsageError) as refused:
        Ref.parse("x" * 100_000)
    assert len(str(refused.value)) < 1000


@given(st.text(max_size=30))
def test_a_ref_is_a_safe_path_or_no_ref(text: str) -> None:
    try:
        ref = Ref.parse(text)
    except UsageError:
        return
    for part in ref.tag_key:
        assert "/" not in part
        assert not part.startswith((".", "@"))
        assert part.isascii()
    assert ref.full_name == ref.full_name.lower()
    assert is_spelling_of(spelled(text), ref)


@given(st.integers(0, 2**63 - 1))
def test_node_ids(node: int) -> None:
    assert parse_node(format_node(node)) == node


@pytest.mark.parametrize("text", ["", "0" * 15, "0" * 17, "8" + "0" * 15, "G" * 16, "0" * 15 + "A"])
def test_not_node_ids(text: str) -> None:
    with pytest.raises(UsageError):
        parse_node(text)


def test_digests() -> None:
    assert is_digest(HEX)
    assert not any(
        map(is_digest, ("", HEX[:-1], HEX + "0", HEX.upper(), HEX[:-1] + "\n", HEX + "\n"))
    )


def test_errors_survive_the_way_through_a_code() -> None:
    for kind in (errors.UsageError, errors.NotFound, errors.NotAllowed, errors.NoSpace,
                 errors.IntegrityError, errors.OriginUnavailable, errors.Unreachable,
                 errors.TimedOut, errors.Conflict, errors.P2PCacheError):  # fmt: skip
        again = errors.from_code(kind.exit_code, "why")
        assert type(again) is kind
        assert str(again) == "why"
    assert type(errors.from_code(77, "?")) is errors.P2PCacheError
    assert errors.InvalidManifest.exit_code == errors.OriginChanged.exit_code == 6


@pytest.mark.parametrize("url", ["s3://lake/m", "https://hub.example/org/m"])
def test_a_url_is_no_ref_and_is_imported(url: str) -> None:
    with pytest.raises(errors.UsageError, match=r"not a model ref: .*; .*`p2pcache import URL "):
        parse_wanted(url)


@pytest.mark.parametrize("login", ["u:hidden", "u:p/hidden", "u:p@hidden"])
def test_a_url_that_is_no_ref_is_not_repeated_with_its_secrets(login: str) -> None:
    with pytest.raises(errors.UsageError) as refused:
        parse_wanted(f"https://{login}@hub.example/m?X-Amz-Signature=hidden")
    assert "https://" in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("revision", ["", "@v1.2"])
def test_a_model_of_a_hub_is_a_ref_with_its_capitals(revision: str) -> None:
    wanted = parse_wanted(f"hf://Qwen/Qwen3-8B{revision}")
    tag = revision.removeprefix("@") or "main"
    assert wanted.url == f"hf://Qwen/Qwen3-8B@{tag}"
    assert ref_of_hub(wanted.url) == f"Qwen/Qwen3-8B:{tag}"
    assert Ref.parse(ref_of_hub(wanted.url)) == wanted.ref

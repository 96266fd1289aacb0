"""How names are written: capitals are kept for people, and two names never differ by them alone."""

import os
from pathlib import Path

import pytest

from p2pcache.errors import Conflict
from p2pcache.ids import Ref, spelled
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.repo import OriginRepo, PushResult, tag_key
from p2pcache.io.origins.retry import RetryPolicy
from tests.io.models.store_kit import Model
from tests.io.origins.test_repo import Careless


@pytest.fixture(params=[FileOrigin, Careless])
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> OriginRepo:
    return OriginRepo(Retrying(request.param(tmp_path.as_uri()), RetryPolicy(0)))


def push(repo: OriginRepo, text: str, *, force: bool = False) -> PushResult:
    model, ref = Model({"a": b"weights"}), Ref.parse(text)

    def open_blob(_: int) -> int:
        path = Path(repo.url.removeprefix("file://")) / "source"
        path.write_bytes(b"weights")
        return os.open(path, os.O_RDONLY)

    def write_tag(ref: Ref, digest: str, expected: int | None) -> object:
        return repo.put_tag(ref, digest, expect_generation=expected, sole_writer=True)

    return repo.push(
        model.layout, ref, open_blob=open_blob, spelling=spelled(text), force=force,
        write_tag=write_tag,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_name_is_written_as_it_was_pushed_and_found_however_it_is_typed(
    repo: OriginRepo, tmp_path: Path
) -> None:
    pushed = push(repo, "Qwen/Qwen3-8B:V1")
    for text in ("qwen/qwen3-8b:V1", "QWEN/Qwen3-8b:V1"):
        assert repo.get_tag(Ref.parse(text)).digest == pushed.digest
        assert repo.spelling(Ref.parse(text)) == "Qwen/Qwen3-8B"
    assert [ref for ref, _ in repo.list_tags()] == [Ref("qwen", "qwen3-8b", "V1")]
    assert (tmp_path / "p2pcache/v1/tags/qwen/qwen3-8b/V1").is_file()
    push(repo, "Qwen/Qwen3-8B:v2")
    push(repo, "team/plain")
    assert repo.spelling(Ref.parse("Team/Plain")) == "team/plain"
    assert not (tmp_path / "p2pcache/v1/names/team").exists()


@pytest.mark.parametrize(
    ("first", "second"),
    [("Qwen/Qwen3-8B", "qwen/qwen3-8b"), ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
     ("Qwen/Qwen3-8B", "Qwen/QWEN3-8B"), ("Llama", "library/llama")],
)  # fmt: skip
def test_names_that_differ_by_capitals_alone_are_refused(
    repo: OriginRepo, first: str, second: str
) -> None:
    push(repo, f"{first}:v1")
    for tag in ("v1", "v2"):
        with pytest.raises(Conflict, match=f"written {first}: push to {first}:{tag}"):
            push(repo, f"{second}:{tag}")
    assert [ref.tag for ref, _ in repo.list_tags()] == ["v1"]
    assert repo.spelling(Ref.parse(first)) == first
    push(repo, f"{second}:v2", force=True)
    assert repo.spelling(Ref.parse(first)) == spelled(second)
    push(repo, f"{second}:v3")


@pytest.mark.parametrize(
    "stored", [b"other/name", b"", b"\xff\xfe", b"Qwen/Qwen3-8B\n", b"x" * 180]
)
def test_what_is_stored_is_believed_only_if_it_writes_this_name(
    repo: OriginRepo, tmp_path: Path, stored: bytes
) -> None:
    push(repo, "Qwen/Qwen3-8B")
    repo.origin.put("p2pcache/v1/names/qwen/qwen3-8b", stored)
    assert repo.spelling(Ref.parse("qwen/qwen3-8b")) == "qwen/qwen3-8b"


def test_a_folder_with_capitals_in_the_storage_is_no_model(repo: OriginRepo) -> None:
    push(repo, "team/llama:v1")
    data, _ = repo.origin.get(tag_key(Ref.parse("team/llama:v1")), limit=4096)
    repo.origin.put("p2pcache/v1/tags/Team/Llama/v2", data)
    assert [ref.short for ref, _ in repo.list_tags()] == ["team/llama:v1"]

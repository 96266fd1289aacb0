"""Selections of files: what patterns take, and what a selection is called."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.format.file_filter import is_name, name_of, pick_paths, runs_of
from p2pcache.errors import NotFound, UsageError
from tests.io.models.store_kit import Model

PATHS = ["config.json", "model-1.safetensors", "sub/a.json", "sub/deep/b.bin", "Upper.JSON"]


@pytest.mark.parametrize(
    ("include", "exclude", "kept"),
    [
        (["*.json"], [], {"config.json", "sub/a.json"}),
        (["sub/"], [], {"sub/a.json", "sub/deep/b.bin"}),
        (["sub/"], ["sub/deep/"], {"sub/a.json"}),
        ([], ["*.json", "*.JSON"], {"model-1.safetensors", "sub/deep/b.bin"}),
        (["model-[0-3]*", "config.json"], [], {"model-1.safetensors", "config.json"}),
        (["*"], [], set(PATHS)),
    ],
)
def test_patterns(include: list[str], exclude: list[str], kept: set[str]) -> None:
    assert set(pick_paths(PATHS, include, exclude)) == kept


def test_patterns_that_select_nothing_or_are_wrong_are_refused() -> None:
    with pytest.raises(NotFound):
        pick_paths(PATHS, ["*.gguf"], [])
    for patterns in ([""], ["x" * 1025], ["x"] * 65):
        with pytest.raises(UsageError):
            pick_paths(PATHS, patterns, [])


def test_patterns_that_would_take_minutes_are_refused_at_once() -> None:
    long = "/".join(["a" * 240] * 4)
    many = [f"{i:05}{long}" for i in range(3000)]
    slow = ["*" + f"[!{chr(66 + i)}]" * 200 + "b" for i in range(64)]
    began = time.thread_time()
    with pytest.raises(UsageError, match="3,000 files"):
        pick_paths(many, slow, [])
    with pytest.raises(UsageError, match="3,000 files"):
        pick_paths(many, [], slow)
    assert time.thread_time() - began < 1
    with pytest.raises(NotFound):  # few of them are allowed
        pick_paths(many, slow[:1], [])


def test_a_name_is_of_the_files_not_of_their_order() -> None:
    assert name_of(["a", "b"]) == name_of(["b", "a"])
    assert name_of(["a", "b"]) != name_of(["a"])
    assert is_name(name_of(PATHS))
    assert not any(map(is_name, ["", "x" * 32, "A" * 32, "a" * 31, "../" + "a" * 29]))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.data())
def test_runs_cover_the_files_bytes(sizes: list[int], data: st.DataObject) -> None:
    files = {f"f{i}": bytes([i]) * size for i, size in enumerate(sizes)}
    layout = Model(files, 700).layout
    some = data.draw(st.sets(st.sampled_from(sorted(files)), min_size=1))
    runs = runs_of(layout, sorted(some))
    for path in some:
        for chunk in layout.blobs[layout.blob_of_file[path]].chunks:
            assert runs >> layout.run_of(chunk) & 1
    assert runs <= bitset.full(layout.run_count)

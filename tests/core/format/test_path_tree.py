"""Paths of a manifest that some file system takes for one, and what it costs to find them."""

import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format.manifest import (
    MAX_FOLDERS,
    Chunk,
    check_path,
    make_file,
    make_manifest,
)
from p2pcache.errors import InvalidManifest

ONE = [Chunk(1, bytes(32))]
PARTS = [
    "a",
    "A",
    "b",
    "é",
    "e\u0301",
    "E\u0301",
    "ss",
    "ß",
    "a\uff0fb",
    "fi",
    "\ufb01",
    "a!",
    "\u0338",
]


def fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def collide(paths: list[str]) -> bool:
    """What the walk must find, said plainly: all folders at once."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        if files.setdefault(fold(path), path) != path:
            return True
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folders.setdefault(fold(folder), folder) != folder:
                return True
    return bool(files.keys() & folders.keys())


@given(
    st.sets(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join),
        min_size=1,
        max_size=8,
    )
)
def test_the_walk_finds_what_a_look_at_all_folders_finds(paths: set[str]) -> None:
    for path in paths:
        check_path(path)
    try:
        make_manifest(make_file(path, ONE) for path in paths)
    except InvalidManifest:
        assert collide(sorted(paths))
    else:
        assert not collide(sorted(paths))


def deep(count: int) -> list[str]:
    return [(f"{i:06d}" + "/a" * 509)[:1024] for i in range(count)]


def test_deep_paths_take_memory_by_their_bytes() -> None:
    files = [make_file(path, ONE) for path in deep(190)]  # 96,000 folders
    tracemalloc.start()
    make_manifest(files)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20  # all their folders' paths together are 50 MB


def test_too_many_folders_are_refused() -> None:
    with pytest.raises(InvalidManifest, match="100,000 folders"):
        make_manifest(make_file(path, ONE) for path in deep(MAX_FOLDERS // 509 + 2))

"""Somebody swaps directories for links while trees are built, published and removed."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.files.materialise import Mode, materialise
from tests.io.models.store_kit import Model, open_store

REF = Ref.parse("team/llama:v1")
ROUNDS = 60  # of the raced act; the racer does some hundreds in the meantime


@contextlib.contextmanager
def racing(act: Callable[[], None]) -> Iterator[None]:
    """`act` again and again on another thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of somebody else, where nothing may appear, change or go."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "a").mkdir()
    (folder / "config.json").write_text("the victim's own")
    (folder / "a" / "keep").write_text("me")
    return folder


def untouched(victim: Path) -> None:
    assert {str(p.relative_to(victim)) for p in victim.rglob("*")} == {"a", "a/keep", "config.json"}
    assert (victim / "config.json").read_text() == "the victim's own"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("config.json", "a/one", "a/b/two", "c/three"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 100)
    return root


@pytest.mark.parametrize("mode", ["auto", "symlink"])
def test_materialise_while_a_racer_swaps_the_built_directory(
    tree: Path, tmp_path: Path, victim: Path, mode: Mode
) -> None:
    """The directory in the making, and its folders, are moved away and links put in their place."""
    shared = tmp_path / "shared"
    shared.mkdir()

    def swap() -> None:
        for path in shared.iterdir():
            if ".p2pcache-" in path.name and not path.is_symlink():
                inner = path / "a"
                if inner.is_dir() and not inner.is_symlink():
                    inner.rename(shared / f"stolen-{os.urandom(4).hex()}")
                    inner.symlink_to(victim / "a")
                path.rename(shared / f"stolen-{os.urandom(4).hex()}")
                path.symlink_to(victim)

    with racing(swap):
        for _ in range(ROUNDS):
            with contextlib.suppress(P2PCacheError):
                materialise(tree, shared / "mine", mode)
            with contextlib.suppress(OSError):
                (shared / "mine").unlink() if (shared / "mine").is_symlink() else shutil.rmtree(
                    shared / "mine", ignore_errors=True
                )
    untouched(victim)


def test_materialise_where_the_name_is_taken_by_a_link(
    tree: Path, tmp_path: Path, victim: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()

    def plant() -> None:
        (shared / "mine").symlink_to(victim)
        (shared / "mine").unlink()

    with racing(plant):
        for _ in range(ROUNDS):
            with contextlib.suppress(P2PCacheError):
                materialise(tree, shared / "mine")
            if not (shared / "mine").is_symlink():
                shutil.rmtree(shared / "mine", ignore_errors=True)
    untouched(victim)


def test_trees_while_a_racer_swaps_the_folders_above(tmp_path: Path, victim: Path) -> None:
    """Publishing and removing go by descriptor: a link in the way is an error, not a way out."""
    wanted = Model({"config.json": b"{}", "a/one": b"1" * 1000})
    store = open_store(tmp_path)
    try:
        here = wanted.add(store)
        wanted.fill(here)
        models = tmp_path / "cache/models"

        def swap() -> None:
            space = models / "team"
            space.rename(models / f"x{os.urandom(4).hex()}")
            space.symlink_to(victim)
            space.unlink()

        with racing(swap):
            for _ in range(ROUNDS):
                with contextlib.suppress(P2PCacheError):
                    here.publish(REF, 1)
                with contextlib.suppress(P2PCacheError):
                    store.remove_tag(REF)
    finally:
        store.close()
    untouched(victim)


@pytest.mark.parametrize("place", ["team", "team/llama", "team/llama/v1"])
def test_a_link_that_stands_in_the_cache_is_not_followed(
    tmp_path: Path, victim: Path, place: str
) -> None:
    wanted = Model({"config.json": b"{}", "a/one": b"1" * 1000})
    store = open_store(tmp_path)
    try:
        here = wanted.add(store)
        wanted.fill(here)
        planted = tmp_path / "cache/models" / place
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.symlink_to(victim)
        with contextlib.suppress(P2PCacheError):
            here.publish(REF, 1)
        with contextlib.suppress(P2PCacheError):
            store.remove_tag(REF)
        with contextlib.suppress(P2PCacheError):
            store.remove_model(here.digest)
    finally:
        store.close()
    untouched(victim)

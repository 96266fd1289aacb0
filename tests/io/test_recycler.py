"""Recycled files: whose they may become, what is never written over, what the disk gets back."""

import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from p2pcache.io import recycler
from p2pcache.io.disk import Disk
from p2pcache.io.recycler import KEEP_S, LEAST_BYTES, Recycler
from p2pcache.io.store import Store
from tests.io.store_kit import REF, Model

MB = 1 << 20


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A recycler with two directories beside it."""

    def __init__(self, root: Path, *, limit_bytes: int = 64 * MB, min_free_bytes: int = 0) -> None:
        self.root = root
        for name in ("tmp", "blobs", "partial"):
            (root / name).mkdir()
        self.disk = Disk()
        self.clock = Clock()
        self.tmp, self.blobs, self.partial = (
            self.disk.open_directory(None, str(root / n)) for n in ("tmp", "blobs", "partial")
        )
        self.it = Recycler(root, self.tmp, self.disk, limit_bytes=limit_bytes,
                           min_free_bytes=min_free_bytes, clock=self.clock)  # fmt: skip

    def blob(self, name: str, size: int) -> Path:
        path = self.root / "blobs" / name
        path.write_bytes(b"x" * size)
        path.chmod(0o444)
        return path

    def removed(self, name: str, size: int) -> bool:
        self.blob(name, size)
        kept = self.it.keep(self.blobs, name)
        self.it.settle()
        return kept

    def kept(self) -> list[int]:
        return sorted(p.stat().st_size for p in (self.root / "tmp").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_removed_file_becomes_the_next_one_of_its_size(place: Place) -> None:
    inode = place.blob("a", 3 * MB).stat().st_ino
    assert place.it.keep(place.blobs, "a")
    assert not place.it.take(3 * MB, place.partial, "b"), "its old name may come back yet"
    place.it.settle()
    assert place.it.held_bytes == 3 * MB
    assert place.it.take(2 * MB + 5, place.partial, "b")
    info = (place.root / "partial/b").stat()
    assert (info.st_ino, info.st_size, info.st_mode & 0o777) == (inode, 2 * MB + 5, 0o600)
    assert place.it.held_bytes == 0
    assert place.kept() == []


def test_the_nearest_size_is_taken_and_none_far_from_it(place: Place) -> None:
    for size in (2, 4, 8):
        assert place.removed(f"{size}", size * MB)
    assert not place.it.take(17 * MB, place.partial, "large")
    assert not place.it.take(MB // 2, place.partial, "small")
    assert place.it.take(3 * MB, place.partial, "smallest that is enough")
    assert place.kept() == [2 * MB, 8 * MB]
    assert place.it.take(3 * MB, place.partial, "else the largest of those that are near")
    assert place.kept() == [8 * MB]


def test_small_linked_and_unwanted_files_are_the_callers_to_delete(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert not place.removed("small", LEAST_BYTES // 2)
    os.link(place.blob("linked", 2 * MB), tmp_path / "elsewhere")
    assert not place.it.keep(place.blobs, "linked")
    (tmp_path / "off").mkdir()
    assert not Place(tmp_path / "off", limit_bytes=0).removed("any", 2 * MB)


def test_a_file_that_somebody_has_open_or_mapped_is_never_written_over(place: Place) -> None:
    path = place.blob("open", 2 * MB)
    with path.open("rb"):
        assert place.it.keep(place.blobs, "open"), "it is gone all the same"
    with place.blob("mapped", 2 * MB).open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert place.it.keep(place.blobs, "mapped")
    assert place.kept() == []
    assert mapping[:1] == b"x"
    mapping.close()


def test_one_that_another_process_opened_meanwhile_is_not_taken(place: Place) -> None:
    assert place.removed("a", 2 * MB)
    (kept,) = (place.root / "tmp").iterdir()
    hold = [
        sys.executable,
        "-c",
        "import sys; f = open(sys.argv[1]); print(1, flush=True); input()",
    ]
    with subprocess.Popen([*hold, str(kept)], stdin=-1, stdout=-1) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        assert not place.it.take(2 * MB, place.partial, "b")
        reader.communicate(b"\n")
    assert place.kept() == []


def test_the_limit_holds_the_oldest_go_and_a_large_one_is_cut(tmp_path: Path) -> None:
    place = Place(tmp_path, limit_bytes=5 * MB)
    for size in (2, 3, 1):
        assert place.removed(f"{size}", size * MB)
    assert place.kept() == [MB, 3 * MB]
    assert place.removed("large", 20 * MB)
    assert place.it.held_bytes <= 5 * MB
    assert place.kept() == [5 * MB]


def test_what_nobody_needs_is_given_back(place: Place) -> None:
    assert place.removed("a", 2 * MB)
    place.clock.now += KEEP_S - 1
    assert place.removed("b", 3 * MB)
    place.it.expire()
    assert place.kept() == [2 * MB, 3 * MB]
    place.clock.now += 1
    place.it.expire()
    assert place.kept() == [3 * MB]
    place.it.clear()
    assert place.kept() == []


def test_a_full_disk_gets_its_space_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10 * MB
    monkeypatch.setattr(recycler, "free_bytes", lambda _root: free)
    for name in "abc":
        assert place.removed(name, 2 * MB)
    assert place.it.free_bytes == 16 * MB
    place.it.make_room(10 * MB)
    assert len(place.kept()) == 3
    place.it.make_room(11 * MB)
    assert len(place.kept()) == 2
    free = 0
    place.it.make_room(3 * MB)
    assert place.kept() == []


# Through the store


def big_model(seed: int) -> Model:
    dice = random.Random(seed)
    return Model({f"w{i}.bin": dice.randbytes(2 * MB + i) for i in range(3)})


def inodes(folder: Path) -> set[int]:
    return {p.stat().st_ino for p in folder.iterdir() if "." not in p.name}


def test_one_model_is_written_over_another_and_only_proved_bytes_are_believed(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path, min_free_bytes=0, recycle_bytes=64 * MB)
    old, new = big_model(1), big_model(2)
    here = old.add(store)
    old.fill(here)
    here.publish(REF, 1)
    before = inodes(tmp_path / "blobs")
    assert store.remove_model(old.digest) >= 6 * MB
    # Not by the whole disk's free space, which others change meanwhile.
    assert store._blobs.recycler.held_bytes >= 6 * MB
    here = new.add(store)
    assert inodes(tmp_path / "partial") == before
    assert here.copy_local() == 0
    assert here.have_runs() == 0
    chunks = range(new.layout.chunk_count)
    new.fill(here, chunks[::2])
    store.close()
    store = Store.open(tmp_path, min_free_bytes=0)
    reopened = store.get(new.digest)
    assert reopened is not None
    reopened.copy_local()
    assert [c for c in chunks if reopened.has_chunk(c)] == list(chunks[::2])
    new.fill(reopened)
    new.assert_tree(tmp_path / "models" / reopened.publish(REF, 2))
    store.close()


def test_an_engine_keeps_the_weights_of_a_model_that_was_removed(tmp_path: Path) -> None:
    store = Store.open(tmp_path, min_free_bytes=0, recycle_bytes=64 * MB)
    old, new = big_model(1), big_model(2)
    here = old.add(store)
    old.fill(here)
    tree = tmp_path / "models" / here.publish(REF, 1)
    with (tree / "w1.bin").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    store.remove_model(old.digest)
    here = new.add(store)
    new.fill(here)
    here.publish(REF, 2)
    assert mapping[:] == old.files["w1.bin"]
    mapping.close()
    new.assert_proved(here)
    store.close()
    assert list((tmp_path / "tmp").iterdir()) == []

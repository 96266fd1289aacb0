"""An inode that anybody could see under `models/` never holds another model's bytes, and never gets shorter."""

import errno
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from p2pcache.errors import NotFound
from p2pcache.io.blobs import letting_go
from p2pcache.io.disk.disk import Disk
from p2pcache.io.host import file_users
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_store

MB = 1 << 20


def megabytes(seed: int) -> Model:
    """Files of the sizes that all of its kind have."""
    dice = random.Random(seed)
    return Model({f"w{i}.bin": dice.randbytes(2 * MB + i) for i in range(2)})


@contextmanager
def mapped(path: Path) -> Iterator[Callable[[], bytes]]:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with mapping:
        yield lambda: mapping[:]


@contextmanager
def by_descriptor(path: Path, flags: int) -> Iterator[Callable[[], bytes]]:
    fd = os.open(path, flags)
    try:
        yield Path(f"/proc/self/fd/{fd}").read_bytes
    finally:
        os.close(fd)


@contextmanager
def bind_mounted(path: Path) -> Iterator[Callable[[], bytes]]:
    """As `docker -v FILE:...` and a `subPath` do it."""
    place = path.parents[4] / "mounted"
    place.touch()
    made = subprocess.run(["mount", "--bind", str(path), str(place)], check=False)
    if made.returncode:
        pytest.skip("needs the right to mount")
    try:
        yield place.read_bytes
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


HOLDS = {
    "mapped": mapped,
    "open": lambda path: by_descriptor(path, os.O_RDONLY),
    "O_PATH": lambda path: by_descriptor(path, os.O_PATH),
    "bind mount": bind_mounted,
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS.keys())
def test_a_reader_of_a_removed_file_never_sees_the_next_model(
    tmp_path: Path, hold: Callable[[Path], AbstractContextManager[Callable[[], bytes]]]
) -> None:
    store = Store.open(tmp_path / "cache", min_free_bytes=0)
    old, new = megabytes(1), megabytes(2)
    here = old.add(store)
    old.fill(here)
    tree = tmp_path / "cache/models" / here.publish(REF, 1)
    with hold(tree / "w1.bin") as read:
        store.remove_model(old.digest)
        here = new.add(store)
        new.fill(here)
        here.publish(REF, 2)
        assert read() == old.files["w1.bin"]
    store.close()
    assert list((tmp_path / "cache/tmp").iterdir()) == []


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS.keys())
def test_a_reader_of_a_model_of_which_a_part_goes_sees_no_holes(
    tmp_path: Path, hold: Callable[[Path], AbstractContextManager[Callable[[], bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The agent sees neither the process nor the mount: it looked a moment ago, or lives in a container."""
    monkeypatch.setattr(file_users, "look", lambda _: file_users.Look([], ""))
    for module in (file_users, letting_go):
        monkeypatch.setattr(module, "held_by_anybody", lambda _path, _folder: False)
    dice = random.Random(1)
    one = Model({"config.json": b"{}", "weights-1.bin": dice.randbytes(6 * MB)}, MB)
    store = open_store(tmp_path)
    shown = published(store, one, tmp_path)
    here = one.add(store)
    with hold(shown) as read:
        for again in (False, True):  # also in the agent's next life
            if again:
                store.close()
                store = open_store(tmp_path)
                here = one.add(store)
            store.removal.let_go(here, 0b101010 << again)
            store.removal.free_holes(here)
            store.keep_spare()
            assert read() == one.files["weights-1.bin"]
            one.assert_proved(here)
        one.fill(here)
        one.assert_tree(tmp_path / "cache/models" / here.publish(REF, 1))
        assert read() == one.files["weights-1.bin"]
    store.close()


class Watch:
    """Every inode that was ever visible, held by `O_PATH`, so that no number is given out twice."""

    def __init__(self, root: Path, models: list[Model]) -> None:
        self._root = root
        self._of = {m.digest: m for m in models}
        self._held: dict[int, tuple[int, bytes]] = {}  # inode: descriptor, the true bytes
        self._sizes: dict[int, int] = {}
        self._whole: set[int] = set()  # inodes that were in a published tree

    def look(self) -> None:
        """Remember what is visible now, and check all that ever was."""
        for path, true, whole in self._visible():
            inode = path.stat().st_ino
            if inode not in self._held:
                self._held[inode] = os.open(path, os.O_PATH), true
            if whole:
                self._whole.add(inode)
        for inode, (fd, true) in self._held.items():
            found = Path(f"/proc/self/fd/{fd}").read_bytes()
            assert len(found) >= self._sizes.get(inode, 0), "who has it mapped gets SIGBUS"
            self._sizes[inode] = len(found)
            if inode in self._whole:
                assert found == true, "who has it mapped sees holes"
            own = found == true or all(a in (b, 0) for a, b in zip(found, true, strict=True))
            assert own, "others' bytes"

    def _visible(self) -> Iterator[tuple[Path, bytes, bool]]:
        for tree in self._root.glob("*/*/@*"):
            for path, data in self._of[tree.name[1:]].files.items():
                yield tree / path, data, True
        for folder in self._root.glob(".arriving/*/blobs"):
            one = self._of[folder.parent.name]
            for path, number in one.layout.blob_of_file.items():
                yield folder / one.layout.blobs[number].id, one.files[path], False

    def close(self) -> None:
        assert len(self._held) > 5
        for fd, _ in self._held.values():
            os.close(fd)


@pytest.mark.parametrize("seed", range(4))
def test_no_life_of_a_cache_shows_other_bytes_in_a_visible_inode(tmp_path: Path, seed: int) -> None:
    """Pulls that end or don't, models that still arrive, removals, parts that go, checks, restarts."""
    dice = random.Random(seed)
    models = [model(i) for i in range(4)]
    store = open_store(tmp_path)
    watch = Watch(tmp_path / "cache/models", models)
    for _ in range(50):
        one = dice.choice(models)
        here = one.add(store)
        match dice.randrange(6):
            case 0:
                here.show_arriving(one.encoded)
            case 1:
                one.fill(here, range(dice.randrange(one.layout.chunk_count)))
            case 2:
                here.copy_local()
                one.fill(here)
                here.publish(REF, 1)
            case 3:
                here.verify()
            case 4:
                store.close()
                store = open_store(tmp_path)
            case 5:
                here.hide_arriving()
                store.removal.let_go(here, dice.getrandbits(one.layout.run_count))
        watch.look()
        if dice.random() < 0.3:
            store.remove_model(dice.choice(store.models()).digest)
            watch.look()
    watch.close()
    store.close()


def rot(path: Path, at: int, data: bytes) -> None:
    """Another root process writes into a cache file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def published(store: Store, one: Model, root: Path) -> Path:
    here = one.add(store)
    one.fill(here)
    return root / "cache/models" / here.publish(REF, 1) / "weights-1.bin"


def test_a_mapped_file_keeps_its_bytes_while_its_model_is_mended(tmp_path: Path) -> None:
    store, one = open_store(tmp_path), model()
    shown = published(store, one, tmp_path)
    with mapped(shown) as read:
        rot(shown, 2500, b"rot")
        held = read()
        (bad,) = one.add(store).verify()
        for again in (False, True):  # also in the agent's next life
            if again:
                store.close()
                store = open_store(tmp_path)
            here = one.add(store)
            writer = here.begin(bad)
            assert writer is not None
            secret = memoryview(b"another model's".ljust(writer.length))
            writer.put(0, secret)
            writer.update(secret)
            assert not writer.finish()
            assert read() == held
        here = one.add(store)
        assert here.bytes_done > 0, "only the bad chunk comes again"
        one.fill(here)
        one.assert_tree(tmp_path / "cache/models" / here.publish(REF, 1))
        assert read() == held
    store.close()


class FullDisk(Disk):
    """Has no room for copies while `full`."""

    full = False

    def copy_range(self, source: int, start: int, target: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().copy_range(source, start, target, offset, length)


def test_a_damaged_file_that_has_no_room_for_a_copy_comes_anew(tmp_path: Path) -> None:
    disk = FullDisk()
    store, one = open_store(tmp_path, disk), model()
    shown = published(store, one, tmp_path)
    with mapped(shown) as read:
        rot(shown, 2500, b"rot")
        held = read()
        here = one.add(store)
        disk.full = True
        assert here.verify()
        disk.full = False
        assert list((tmp_path / "cache/tmp").iterdir()) == []
        damaged = one.layout.blobs[one.layout.blob_of_file[shown.name]]
        assert not any(here.has_chunk(c) for c in damaged.chunks)
        one.fill(here)
        one.assert_tree(tmp_path / "cache/models" / here.publish(REF, 1))
        assert read() == held
    store.close()


class Halting(Disk):
    """Waits before it copies, until told to go on."""

    def __init__(self) -> None:
        self.copying, self.go_on = Event(), Event()
        self.go_on.set()

    def copy_range(self, source: int, start: int, target: int, offset: int, length: int) -> None:
        self.copying.set()
        assert self.go_on.wait(30)
        super().copy_range(source, start, target, offset, length)


@pytest.mark.parametrize("removed", [False, True])
def test_a_chunk_that_comes_while_its_damaged_file_is_copied(tmp_path: Path, removed: bool) -> None:
    disk = Halting()
    store, one = open_store(tmp_path, disk), model()
    shown = published(store, one, tmp_path)
    rot(shown, 2500, b"rot")
    here = one.add(store)
    disk.copying.clear()
    disk.go_on.clear()
    with ThreadPoolExecutor(3) as pool:
        checked = pool.submit(here.verify)
        assert disk.copying.wait(30)
        (bad,) = [c for c in range(one.layout.chunk_count) if not here.has_chunk(c)]
        put = pool.submit(one.put, here, bad)
        with pytest.raises(TimeoutError):
            put.result(0.2)
        gone = pool.submit(store.remove_model, one.digest) if removed else None
        disk.go_on.set()
        assert checked.result(30) == [bad]
        if gone is None:
            assert put.result(30)
            assert here.complete
            one.assert_tree(tmp_path / "cache/models" / here.publish(REF, 1))
        else:
            gone.result(30)
            with suppress(NotFound):
                put.result(30)
            assert not any(
                list((tmp_path / "cache" / d).iterdir()) for d in ("blobs", "partial", "tmp")
            )
    store.close()


@pytest.mark.parametrize("size", [7000, 3000, 0])
def test_a_bad_file_of_another_size_is_never_cut_under_its_readers(
    tmp_path: Path, size: int
) -> None:
    store, one = open_store(tmp_path), model()
    shown = published(store, one, tmp_path)
    os.truncate(shown, size)
    with by_descriptor(shown, os.O_PATH) as read:
        here = one.add(store)
        here.recheck()
        here.copy_local()
        assert len(read()) >= size
        assert here.complete is (size == 7000), "what follows the model's bytes costs none of them"
        one.fill(here)
        one.assert_tree(tmp_path / "cache/models" / here.publish(REF, 1))
        assert len(read()) >= size
    store.close()


def test_a_file_is_deleted_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes a second or two for a large one: nobody waits for the pool's lock meanwhile."""
    store, one = open_store(tmp_path), model()
    published(store, one, tmp_path)
    lock = store._blobs.lock
    seen: list[bool] = []
    unlink = Disk.unlink

    def watched(disk: Disk, parent: int, name: str) -> None:
        if name.startswith("removed-"):
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(lock.acquire, timeout=5).result())
                if seen[-1]:
                    pool.submit(lock.release).result()
        unlink(disk, parent, name)

    monkeypatch.setattr(Disk, "unlink", watched)
    store.remove_model(one.digest)
    assert seen
    assert all(seen)
    assert list((tmp_path / "cache/tmp").iterdir()) == []
    assert list((tmp_path / "cache/blobs").iterdir()) == []
    store.close()

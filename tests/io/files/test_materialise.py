"""`--to DIR`: complete or not at all, and never somebody else's files."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import NoSpace, NotFound, UsageError
from p2pcache.io.files.materialise import Mode, materialise
from tests.io.models.store_kit import REF, Model, model, open_store

WANTED = model()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for path, data in WANTED.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o444)
    return root


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if "p2pcache-" in p.name]


@pytest.mark.parametrize("mode", ["auto", "copy", "hard", "symlink"])
def test_all_files_appear_and_a_second_call_does_nothing(
    tree: Path, tmp_path: Path, mode: Mode
) -> None:
    to = tmp_path / "a/b/mine"
    materialise(tree, to, mode)
    WANTED.assert_tree(to)
    assert leftovers(to.parent) == []
    stamps = {p: p.lstat().st_ino for p in to.rglob("*")}
    materialise(tree, to, mode)
    assert {p: p.lstat().st_ino for p in to.rglob("*")} == stamps
    file = to / "config.json"
    assert file.is_symlink() == (mode == "symlink")
    assert (file.stat().st_ino == (tree / "config.json").stat().st_ino) == (
        mode in ("hard", "symlink")
    )
    if mode in ("auto", "copy"):
        assert os.access(file, os.W_OK)
        file.write_bytes(b"mine to change")
        assert (tree / "config.json").read_bytes() == WANTED.files["config.json"]


def test_an_empty_directory_is_filled(tree: Path, tmp_path: Path) -> None:
    to = tmp_path / "mine"
    to.mkdir()
    materialise(tree, to)
    WANTED.assert_tree(to)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A directory that is a mount, as an emptyDir in a pod."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "mnt" / "models"
    folder.mkdir(parents=True)
    (tmp_path / "volume").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "volume"), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_mounted_directory_is_filled_in_place(tree: Path, mount: Path) -> None:
    for _ in range(2):
        materialise(tree, mount)
        WANTED.assert_tree(mount)
        assert leftovers(mount) == leftovers(mount.parent) == []


def test_leftovers_of_a_killed_command_in_a_mount_are_removed(tree: Path, mount: Path) -> None:
    (mount / ".models.p2pcache-0123").mkdir()
    (mount / ".models.p2pcache-0123" / "half").write_bytes(b"x" * 100)
    (mount / "config.json").write_bytes(b"moved up before the end")
    materialise(tree, mount)
    WANTED.assert_tree(mount)
    assert leftovers(mount) == []


@pytest.mark.parametrize("name", ["lost+found", ".snapshot"])
def test_what_a_file_system_made_in_a_fresh_volume_stays(
    tree: Path, mount: Path, name: str
) -> None:
    (mount / name).mkdir(mode=0o700)
    (mount / name / "#12").write_text("saved by fsck")
    for _ in range(2):
        materialise(tree, mount)
        assert (mount / name / "#12").read_text() == "saved by fsck"
        assert {p.name for p in mount.iterdir()} == {p.name for p in tree.iterdir()} | {name}
        assert leftovers(mount) == []


def test_elsewhere_somebody_else_made_that_name(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "lost+found").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds other files"):
        materialise(tree, tmp_path / "mine")


def test_a_mount_with_other_files_is_left_alone(tree: Path, mount: Path) -> None:
    (mount / "mine").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        materialise(tree, mount)
    assert [p.name for p in mount.iterdir()] == ["mine"]


def test_a_full_mount_is_left_empty(tree: Path, tmp_path: Path, mount: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "small", str(mount)], check=True)
    try:
        with pytest.raises(NoSpace):
            materialise(tree, mount)
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_relative_target(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    materialise(tree, Path("mine"), "symlink")
    WANTED.assert_tree(tmp_path / "mine")


@pytest.mark.parametrize("change", ["more", "less", "other", "kind"])
def test_other_files_are_left_alone(tree: Path, tmp_path: Path, change: str) -> None:
    to = tmp_path / "mine"
    materialise(tree, to)
    file = to / "config.json"
    if change == "more":
        (to / "notes").write_text("mine")
    elif change == "less":
        file.unlink()
    elif change == "other":
        file.write_bytes(b"#" * len(file.read_bytes()))
    before = {p: p.read_bytes() for p in to.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="holds other files"):
        materialise(tree, to, "hard" if change == "kind" else "auto")
    assert {p: p.read_bytes() for p in to.rglob("*") if p.is_file()} == before


def test_the_first_stranger_decides(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--to /` walked the whole machine before it said no."""
    to = tmp_path / "home"
    for number in range(50):
        (to / f"{number}").mkdir(parents=True)
        (to / f"{number}/notes").write_text("mine")
    scanned: list[object] = []
    scandir = os.scandir

    def counting(path: Path) -> object:
        scanned.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    with pytest.raises(UsageError, match="holds other files"):
        materialise(tree, to)
    assert len([p for p in scanned if to in Path(str(p)).parents]) == 1


def test_the_same_bytes_with_another_time_are_the_same(tree: Path, tmp_path: Path) -> None:
    to = tmp_path / "mine"
    materialise(tree, to)
    os.utime(to / "config.json", (1, 1))
    materialise(tree, to)


def test_a_file_or_link_in_the_way(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="not a directory"):
            materialise(tree, tmp_path / name)


def test_a_missing_tree(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="pull the model again"):
        materialise(tmp_path / "gone", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_failure_half_way_leaves_nothing(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(*_: object) -> bool:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return False

    monkeypatch.setattr("p2pcache.io.disk.syscalls.reflink", full)
    with pytest.raises(NoSpace, match="make room there"):
        materialise(tree, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    assert leftovers(tmp_path) == []


def test_a_path_that_cannot_even_be_looked_at(tree: Path, tmp_path: Path) -> None:
    # As somebody else's closed home; root can look into those, but not at this one.
    with pytest.raises(UsageError, match="File name too long"):
        materialise(tree, tmp_path / ("x" * 300))


def test_hard_links_across_file_systems(tree: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tree.stat().st_dev:
        pytest.skip("needs a second file system")
    to = memory / f"p2pcache-test-{os.getpid()}"
    with pytest.raises(UsageError, match="another file system"):
        materialise(tree, to, "hard")
    assert not to.exists()


def test_copying_where_the_kernel_cannot(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "not here")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    materialise(tree, tmp_path / "mine")
    WANTED.assert_tree(tmp_path / "mine")


def test_out_of_a_cache(tmp_path: Path) -> None:
    wanted = Model({"a/b": b"1", "c": b"2" * 100_000})
    store = open_store(tmp_path)
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 1)
    materialise(tmp_path / "cache/models/team/llama/v1", tmp_path / "mine")
    wanted.assert_tree(tmp_path / "mine")
    store.close()

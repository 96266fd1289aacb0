"""The arriving directory: what loaders see of a model while its chunks come, and when it is doubted."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.errors import IntegrityError, NotFound, P2PCacheError
from p2pcache.io.models.arriving_dir import ArrivingDir, Board
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, open_fds, open_store

KIB = 1024


def wanted_model(seed: int = 5) -> Model:
    dice = random.Random(seed)
    return Model(
        {
            "a.bin": dice.randbytes(900 * KIB),
            "b.bin": dice.randbytes(600 * KIB),
            "c.json": b"{}",
            "empty": b"",
        },
        256 * KIB,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def show(here: ModelStore, model: Model, tmp_path: Path) -> Board:
    shown = here.show_arriving(model.encoded)
    return Board(tmp_path / "cache/models" / shown.path, model.digest)


def seen(board: Board) -> int:
    return bitset.of(r for r in range(board.layout.run_count) if board.is_ready(r))


def test_ready_runs_are_the_proved_ones_and_their_bytes_are_there(
    store: Store, tmp_path: Path
) -> None:
    wanted = wanted_model()
    here = wanted.add(store)
    wanted.fill(here, [0])
    board = show(here, wanted, tmp_path)
    assert seen(board) == here.have_runs() != 0
    for chunk in range(1, wanted.layout.chunk_count):
        wanted.fill(here, [chunk])
        assert seen(board) == here.have_runs()
        place = wanted.layout.first_place(chunk)
        fd = board.open_blob(place.blob)
        data = os.pread(fd, wanted.layout.lengths[chunk], place.offset)
        os.close(fd)
        assert data == wanted.chunk(chunk)
    assert board.ready_runs() == wanted.layout.run_count
    assert board.withdrawals == 0
    board.close()
    board.close()


def test_a_run_is_ready_before_others_hear_of_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked without the lock told a loader of a run whose byte was still 0."""
    wanted = wanted_model()
    here = wanted.add(store)
    board, shown = show(here, wanted, tmp_path), ArrivingDir.on_ready

    def ready(arriving: ArrivingDir, run: int) -> None:
        assert not here.have_runs() >> run & 1
        shown(arriving, run)

    monkeypatch.setattr(ArrivingDir, "on_ready", ready)
    wanted.fill(here)
    assert seen(board) == here.have_runs() == bitset.full(wanted.layout.run_count)
    board.close()


def test_it_is_readable_for_all_and_writable_for_none_but_the_agent(
    store: Store, tmp_path: Path
) -> None:
    wanted = wanted_model()
    show(wanted.add(store), wanted, tmp_path).close()
    root = tmp_path / "cache/models/.arriving" / wanted.digest
    assert {p.name for p in root.iterdir()} == {"manifest", "ready", "blobs"}
    for path in root.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o755 if path.is_dir() else 0o644), path
    assert store.models()[0].tags == []  # a namespace it is not


def test_links_survive_publishing_and_open_files_survive_removal(
    store: Store, tmp_path: Path
) -> None:
    wanted = wanted_model()
    here = wanted.add(store)
    board = show(here, wanted, tmp_path)
    fd = board.open_blob(0)
    wanted.fill(here)
    here.publish(REF, 1)
    again = board.open_blob(0)
    assert os.fstat(again).st_ino == os.fstat(fd).st_ino
    here.hide_arriving()
    here.hide_arriving()
    assert not (tmp_path / "cache/models/.arriving" / wanted.digest).exists()
    assert board.ready_runs() == wanted.layout.run_count
    assert os.pread(fd, 10, 0) == os.pread(again, 10, 0) == wanted.files["a.bin"][:10]
    with pytest.raises(NotFound):
        board.open_blob(1)
    os.close(fd)
    os.close(again)
    board.close()
    wanted.assert_tree(tmp_path / "cache/models" / f"team/llama/@{wanted.digest}")


def test_rot_is_withdrawn_and_mended(store: Store, tmp_path: Path) -> None:
    wanted = wanted_model()
    here = wanted.add(store)
    board = show(here, wanted, tmp_path)
    wanted.fill(here)
    here.publish(REF, 1)
    blob = tmp_path / "cache/blobs" / wanted.layout.blobs[0].id
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"rot")
    assert here.verify() == [0]
    assert seen(board) == here.have_runs() == bitset.full(board.layout.run_count) & ~1
    assert board.withdrawals == 1
    wanted.fill(here)
    assert board.ready_runs() == board.layout.run_count
    board.close()


def test_a_file_that_was_deleted_and_made_again_is_shown_anew(store: Store, tmp_path: Path) -> None:
    wanted = wanted_model()
    here = wanted.add(store, reserve=False)
    board = show(here, wanted, tmp_path)
    wanted.fill(here, [0, 1])
    old = board.open_blob(0)
    (tmp_path / "cache/partial" / wanted.layout.blobs[0].id).unlink()
    here._blobs.files.drop(wanted.layout.blobs[0].id)
    wanted.fill(here, [2])
    assert not board.is_ready(wanted.layout.run_of(0))
    assert board.withdrawals > 0
    new = board.open_blob(0)
    assert os.fstat(new).st_ino != os.fstat(old).st_ino
    wanted.fill(here)
    assert os.pread(new, 900 * KIB, 0) == wanted.files["a.bin"]
    os.close(old)
    os.close(new)
    board.close()


def test_a_start_withdraws_the_runs_of_a_crashed_agent(tmp_path: Path) -> None:
    wanted = wanted_model()
    first = open_store(tmp_path)
    here = wanted.add(first)
    wanted.fill(here, [0])
    board = show(here, wanted, tmp_path)
    assert board.ready_runs() == 1
    first.close()  # leaves the directory, as a crash does
    assert (tmp_path / "cache/models/.arriving" / wanted.digest).exists()
    second = open_store(tmp_path)
    assert board.ready_runs() == 0
    assert board.withdrawals == 1
    assert not (tmp_path / "cache/models/.arriving").exists()
    trusted = show(wanted.add(second), wanted, tmp_path)
    assert seen(trusted) == 1
    trusted.close()
    board.close()
    second.close()


def test_removing_the_model_removes_it(store: Store, tmp_path: Path) -> None:
    wanted = wanted_model()
    show(wanted.add(store), wanted, tmp_path).close()
    before = open_fds()
    store.remove_model(wanted.digest)
    assert open_fds() < before
    assert list((tmp_path / "cache/models/.arriving").iterdir()) == []


@pytest.mark.parametrize("harm", ["magic", "size", "manifest", "link"])
def test_strange_directories_are_refused(store: Store, tmp_path: Path, harm: str) -> None:
    wanted = wanted_model()
    show(wanted.add(store), wanted, tmp_path).close()
    root = tmp_path / "cache/models/.arriving" / wanted.digest
    blob = root / "blobs" / wanted.layout.blobs[0].id
    match harm:
        case "magic":
            (root / "ready").write_bytes(b"P2PREDY9" + (root / "ready").read_bytes()[8:])
        case "size":
            (root / "ready").write_bytes((root / "ready").read_bytes() + b"\x01")
        case "manifest":
            (root / "manifest").write_bytes(wanted_model(6).encoded)
        case _:
            blob.unlink()
            blob.symlink_to("/etc/passwd")
    kind = IntegrityError if harm == "manifest" else P2PCacheError
    with pytest.raises(kind):
        Board(root, wanted.digest).open_blob(0)
    with pytest.raises(NotFound):
        Board(tmp_path / "nowhere", wanted.digest)

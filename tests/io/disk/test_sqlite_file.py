"""A SQLite file of our own: steps of its schema, durable writes, and errors that say what to do."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from p2pcache.errors import Busy, IntegrityError, NoSpace, NotAllowed, P2PCacheError, UsageError
from p2pcache.io.disk import sqlite_file
from p2pcache.io.disk.reserve_file import SPARE_BYTES
from p2pcache.io.disk.sqlite_file import SqliteFile

FIRST = "create table pets (name text);"
SECOND = "alter table pets add column age integer default 1;"


class Pets(SqliteFile):
    def add(self, *names: str) -> None:
        with self._write() as db:
            for name in names:
                if name == "bug":
                    raise ValueError(name)
                db.execute("insert into pets (name) values (?)", (name,))

    def names(self) -> list[object]:
        return [name for (name,) in self._all("select name from pets order by name")]

    def remove(self, *names: str) -> None:
        self._delete(("delete from pets where name = ?", [(name,) for name in names]))


def test_a_read_only_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called a damaged file, which somebody might have removed."""
    file = Pets(tmp_path / "db", [FIRST])
    file._db.execute("pragma query_only=1")  # as the kernel's refusal, on any disk
    monkeypatch.setattr(sqlite_file, "is_read_only", lambda _: True)
    with pytest.raises(NotAllowed, match=r"Read-only file system; mount it writable"):
        file.add("rex")
    file._db.execute("pragma query_only=0")
    file.add("rex")
    assert file.names() == ["rex"]
    file.close()


def test_a_folder_that_is_gone_is_told_as_the_database_tells_it(tmp_path: Path) -> None:
    """The look whether its disk is read-only ended in an error that nobody expects."""
    (tmp_path / "there").mkdir()
    file = Pets(tmp_path / "there" / "db", [FIRST])
    file._db.execute("pragma query_only=1")
    shutil.rmtree(tmp_path / "there")
    with pytest.raises(P2PCacheError, match="cache records"):
        file.add("rex")
    file.close()


def test_an_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    old = Pets(tmp_path / "db", [FIRST])
    old.add("rex")
    old.close()
    new = Pets(tmp_path / "db", [FIRST, SECOND])
    assert new._all("select name, age from pets") == [("rex", 1)]
    new.close()
    with pytest.raises(UsageError, match=r"schema 2, this one knows 1.*upgrade"):
        Pets(tmp_path / "db", [FIRST])


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    Pets(tmp_path / "db", [FIRST]).close()
    with pytest.raises(P2PCacheError, match="damaged"):
        Pets(tmp_path / "db", [FIRST, "create table toys (x); create table pets (x);"])
    again = Pets(tmp_path / "db", [FIRST, SECOND])
    assert again._all("select name from sqlite_master where name = 'toys'") == []
    again.close()


def test_a_write_is_whole_or_not_at_all(tmp_path: Path) -> None:
    pets = Pets(tmp_path / "db", [FIRST])
    with pytest.raises(ValueError, match="bug"):
        pets.add("rex", "bug")
    assert pets.names() == []
    pets.add("tom")
    pets.remove("tom", "nobody")
    assert pets.names() == []
    pets.close()


def test_a_lock_of_another_program_is_named_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_WAIT_S", 0.05)
    pets = Pets(tmp_path / "db", [FIRST])
    backup = sqlite3.connect(tmp_path / "db", isolation_level=None)
    backup.execute("begin immediate")
    with pytest.raises(Busy, match="another program") as refused:
        pets.add("rex")
    assert refused.value.retry_after_s == 1.0
    backup.close()
    pets.add("rex")
    pets.close()


def test_a_file_that_is_no_database_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"not a database" * 1000)
    with pytest.raises(IntegrityError, match=r"damaged.*stop the agent and remove this file"):
        Pets(tmp_path / "db", [FIRST])


class Spare:
    """Space that is kept back: giving it up lets the database grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: list[int] = []

    def give_up(self, size_bytes: int) -> bool:
        self.given.append(size_bytes)
        return True


def test_rows_are_deleted_in_the_space_that_is_kept_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Spare(tmp_path)
    pets = Pets(tmp_path / "db", [FIRST], spare)  # type: ignore[arg-type]
    pets.add("rex")
    usual = Pets._delete_all

    def full(self: Pets, deletes: object) -> None:
        if not spare.given:
            raise NoSpace("full")
        usual(self, deletes)  # type: ignore[arg-type]

    monkeypatch.setattr(Pets, "_delete_all", full)
    pets.remove("rex")
    assert (pets.names(), spare.given) == ([], [SPARE_BYTES])

    def fuller(self: Pets, deletes: object) -> None:
        raise NoSpace("full")

    monkeypatch.setattr(Pets, "_delete_all", fuller)
    with pytest.raises(NoSpace, match="nothing can even be removed"):
        pets.remove("rex")
    pets.close()


def test_a_full_disk_rolls_back_and_says_so(tmp_path: Path) -> None:
    pets = Pets(tmp_path / "db", [FIRST])
    (pages,) = pets._db.execute("pragma page_count").fetchone()
    pets._db.execute(f"pragma max_page_count={pages}")
    with pytest.raises(NoSpace, match="full to the last block"):
        pets.add(*["x" * 4000 for _ in range(10)])
    assert pets.names() == []
    pets._db.execute("pragma max_page_count=100000")
    pets.add("rex")
    assert pets.names() == ["rex"]
    pets.close()

"""The history in the cache's records: bounded, merged, and added to caches of the release before."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from p2pcache.errors import Busy, UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk import agent_db
from p2pcache.io.disk.agent_db import HISTORY_ROWS, SCHEMA_VERSION, HistoryRow, Records


def row(ended: float = 1.0, **more: object) -> HistoryRow:
    base = HistoryRow(ended, "pull", "team/m:v1", "ab" * 32, 100, 2.5, 60, 40, 0)
    return base._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def test_rows_come_back_newest_first(path: Path) -> None:
    with closing(Records(path)) as db:
        for ended in (1.0, 2.0, 3.0):
            db.add_history(row(ended))
        assert db.history(2) == [row(3.0), row(2.0)]
    with closing(Records(path)) as db:
        assert len(db.history(10)) == 3


def test_the_oldest_is_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HISTORY_ROWS >= 100
    monkeypatch.setattr(agent_db, "HISTORY_ROWS", 5)
    with closing(Records(path)) as db:
        for ended in range(12):
            db.add_history(row(float(ended)))
        assert [r.ended for r in db.history(100)] == [11, 10, 9, 8, 7]


def test_failures_leave_room_for_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_db, "HISTORY_FAILURES", 3)
    with closing(Records(path)) as db:
        db.add_history(row(0.0))
        for ended in range(1, 20):
            db.add_history(row(float(ended), ref=f"guess-{ended}", code=3))
        db.add_history(row(20.0))
        assert [r.ended for r in db.history(100)] == [20, 19, 18, 17, 0]


def test_a_crash_loop_is_one_row(path: Path) -> None:
    with closing(Records(path)) as db:
        db.add_history(row(1.0))
        for ended in (2.0, 3.0, 4.0):
            db.add_history(row(ended, code=3, message="no such tag"))
        db.add_history(row(5.0, code=7))
        db.add_history(row(6.0))
        db.add_history(row(7.0))
        kept = [(r.ended, r.code, r.times) for r in db.history(10)]
    assert kept == [(7, 0, 1), (6, 0, 1), (5, 7, 1), (4, 3, 3), (1, 0, 1)]


def test_refused_pushes_of_two_models_are_two_rows(path: Path) -> None:
    """A push that is refused at its manifest has no name yet."""
    one, other = "ab" * 32, "cd" * 32
    with closing(Records(path)) as db:
        for ended, digest in ((1.0, one), (2.0, one), (3.0, other)):
            db.add_history(row(ended, action="push", ref="", digest=digest, code=8))
        kept = [(r.digest, r.times) for r in db.history(10)]
    assert kept == [(other, 1), (one, 2)]


def test_records_of_the_release_before_gain_a_history_and_lose_nothing(path: Path) -> None:
    with closing(sqlite3.connect(path)) as old:
        old.executescript(agent_db._SCHEMAS[0] + "pragma user_version=1;")
        old.execute("insert into proofs values ('b', 7, 9)")
        old.commit()
    with closing(Records(path)) as db:
        assert db.proofs() == {"b": ("b", 7, 9)}
        db.add_history(row())
        assert db.history(1) == [row()]
        db.set_asked(("team", "m", "v1"), "ab" * 32)
        assert db.asked() == [(Ref("team", "m", "v1"), "ab" * 32)]
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)


def test_records_of_a_newer_release_are_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(UsageError, match="newer release"):
        Records(path)


def test_records_that_another_program_has_locked_are_not_called_damaged(path: Path) -> None:
    with (
        closing(Records(path)) as db,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        db.add_history(row(1.0))
        other.execute("begin exclusive")
        began = time.monotonic()
        with pytest.raises(Busy, match=r"locked by another program .*: end it .*, then try again"):
            db.add_history(row(2.0))
        assert time.monotonic() - began < 5
        assert db.history(10) == [row(1.0)]
        other.execute("rollback")
        db.add_history(row(3.0))

"""The note of the last known members."""

import logging
from pathlib import Path

import msgspec
import pytest

from p2pcache.core.protocol.messages import Member
from p2pcache.io.notes import known_members
from p2pcache.io.notes.known_members import FRESH_S, KEPT_S, MAX_CALLERS, KnownMembers


class Wall:
    """A clock on the wall."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def member(node: int, address: str = "10.0.0.1:7401") -> Member:
    return Member(node, address)


def saved(known: KnownMembers) -> bool:
    page = known.page()
    if page is not None:
        known.write(page)
    return page is not None


def test_the_next_process_knows_them(tmp_path: Path) -> None:
    wall, path = Wall(), tmp_path / "members.json"
    known = KnownMembers(path, wall=wall)
    known.remember([member(1), member(2)])
    known.add_caller(member(3))
    assert saved(known)
    again = KnownMembers(path, wall=wall)
    assert list(again.members) == [3, 1, 2], "those that the tracker named come last"
    assert [path.name for path in tmp_path.iterdir()] == ["members.json"]


def test_it_is_written_when_something_changed(tmp_path: Path) -> None:
    wall = Wall()
    known = KnownMembers(tmp_path / "m", wall=wall)
    assert not saved(known)
    known.remember([member(1)])
    assert saved(known)
    known.remember([member(1)])
    assert not saved(known)
    known.remember([member(1, "10.0.0.9:7401")])
    assert saved(known), "it has moved"
    wall.now += FRESH_S + 1
    known.remember([member(1)])
    assert saved(known), "its time is old"


def test_a_node_that_the_tracker_names_no_more_is_forgotten_after_a_week(tmp_path: Path) -> None:
    wall = Wall()
    known = KnownMembers(tmp_path / "m", wall=wall)
    known.remember([member(1), member(2)])
    wall.now += KEPT_S - 1
    known.remember([member(2)])
    assert set(known.members) == {1, 2}
    wall.now += 2
    assert set(known.members) == {2}
    assert saved(known)
    assert set(KnownMembers(tmp_path / "m", wall=wall).members) == {2}


def test_callers_without_end_push_no_named_member_out(tmp_path: Path) -> None:
    known = KnownMembers(tmp_path / "m", wall=Wall())
    known.remember([member(1)])
    for node in range(100, 100 + 2 * MAX_CALLERS):
        known.add_caller(member(node))
    known.add_caller(member(1, "10.6.6.6:1"))
    assert len(known.members) == MAX_CALLERS + 1
    assert known.members[1] == member(1), "its own word changes nothing"
    assert saved(known)
    assert KnownMembers(tmp_path / "m", wall=Wall()).members == known.members
    known.remember([member(100 + 2 * MAX_CALLERS - 1)])
    assert len(known.members) == MAX_CALLERS + 1, "the tracker named one of them"
    known.add_caller(member(7))
    assert len(known.members) == MAX_CALLERS + 2, "it left its place to another caller"


@pytest.mark.parametrize("address", ["db.internal:5432", "169.254.169.254:80", "[fe80::1]:1"])
def test_a_caller_sends_us_nowhere(tmp_path: Path, address: str) -> None:
    known = KnownMembers(tmp_path / "m", wall=Wall())
    known.add_caller(member(5, address))
    assert known.members == {}


def test_the_named_ones_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_members, "MAX_MEMBERS", 3)
    known = KnownMembers(tmp_path / "m", wall=Wall())
    known.remember(member(node) for node in range(5))
    assert list(known.members) == [2, 3, 4], "the latest ones stay"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format":1,"members":[{"node":"x"}]}', b"\xff"]
)
def test_a_damaged_note_is_an_empty_one(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "m").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert KnownMembers(tmp_path / "m", wall=Wall()).members == {}
    assert "ignoring" in caplog.text


def test_a_newer_releases_note_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(msgspec.json.encode({"format": 9, "members": [member(1)]}))
    assert KnownMembers(path).members == {}


def test_a_note_without_times_counts_from_when_it_was_written(tmp_path: Path) -> None:
    wall, path = Wall(), tmp_path / "m"
    path.write_bytes(msgspec.json.encode({"format": 1, "members": [member(1)]}))
    wall.now = path.stat().st_mtime + KEPT_S - 10
    assert set(KnownMembers(path, wall=wall).members) == {1}
    wall.now += 20
    assert KnownMembers(path, wall=wall).members == {}

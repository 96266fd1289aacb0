"""A pull that no tracker knew, with healthy storage."""

import asyncio
import dataclasses
import os
import random
import socket
from pathlib import Path

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads.lost_tracker import FILE
from p2pcache.core.protocol.messages import Member
from p2pcache.io.notes.known_members import KEPT_S, MAX_CALLERS, KnownMembers
from tests.agent.kit import agent, make_model, pull, push

DATA = random.Random(11).randbytes(6_000_000)


@pytest.fixture
def origin(tmp_path: Path) -> str:
    push(tmp_path / "origin", make_model(tmp_path / "model", {"w.bin": DATA}), "m:v1")
    return (tmp_path / "origin").as_uri()


@pytest.fixture
def nobody() -> str:
    """Where no tracker listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def hurry(app: AgentApp) -> None:
    """Without the waits that a tracker's leases are worth."""
    quick = {"lease_ttl_s": 1.0, "fallback_grace_s": 0.5, "stuck_after_s": 0.2}
    downloads = app.downloads
    downloads._settings = dataclasses.replace(downloads._settings, **quick)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_node_that_never_met_its_tracker_reads_alone(
    tmp_path: Path, origin: str, nobody: str
) -> None:
    async with agent(tmp_path, origin=origin, tracker=nobody) as app:
        hurry(app)
        async with asyncio.timeout(60):
            end = await pull(app, "m:v1")
    assert (end["event"], end["bytes_origin"]) == ("done", len(DATA))


@pytest.mark.slow
async def test_last_known_members_share_one_copy(tmp_path: Path, origin: str, nobody: str) -> None:
    """A dead node among them stops nobody."""
    async with (
        agent(tmp_path, "a", origin=origin, tracker=nobody) as a,
        agent(tmp_path, "b", origin=origin, tracker=nobody) as b,
    ):
        for app, other in ((a, b), (b, a)):
            hurry(app)
            app.lost_tracker._book.remember(
                [Member(other.node, other.advertise), Member(9, "127.0.0.1:1")]
            )
        async with asyncio.timeout(60):
            ends = await asyncio.gather(pull(a, "m:v1"), pull(b, "m:v1"))
    assert [end["event"] for end in ends] == ["done", "done"]
    assert sum(end["bytes_origin"] for end in ends) <= 1.1 * len(DATA)
    again = KnownMembers(tmp_path / "a" / FILE)
    assert set(again.members) == {b.node, 9}


def test_a_bad_member_book_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for text in ("", "{", '{"format": 1, "members": 7}', '{"format": 9, "members": []}'):
        path.write_text(text)
        assert not KnownMembers(path).members


def test_nodes_that_named_themselves_never_take_the_place_of_others(tmp_path: Path) -> None:
    book = KnownMembers(tmp_path / FILE)
    book.remember([Member(1, "10.0.0.1:7401")])
    for node in range(100, 100 + 2 * MAX_CALLERS):
        book.add_caller(Member(node, "10.0.0.9:7401"))
    book.add_caller(Member(1, "10.6.6.6:1"))
    book.add_caller(Member(2, "169.254.169.254:80"))
    page = book.page()
    assert page is not None
    book.write(page)
    for known in (book.members, KnownMembers(tmp_path / FILE).members):
        assert known[1].address == "10.0.0.1:7401"
        assert len(known) == 1 + MAX_CALLERS
        assert 2 not in known


def test_nodes_that_the_tracker_named_long_ago_are_forgotten(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    book = KnownMembers(tmp_path / FILE, wall=lambda: now[0])
    book.remember([Member(1, "10.0.0.1:1"), Member(2, "10.0.0.2:1")])
    assert book.page() is not None
    now[0] += KEPT_S - 10
    book.remember([Member(2, "10.0.0.2:1")])
    page = book.page()
    assert page is not None, "the newer time is worth a write"
    book.write(page)
    now[0] += 20
    assert set(book.members) == {2}
    assert set(KnownMembers(tmp_path / FILE, wall=lambda: now[0]).members) == {2}


def test_a_note_without_times_counts_from_when_it_was_written(tmp_path: Path) -> None:
    note = tmp_path / FILE
    note.write_text('{"format": 1, "members": [[1, "10.0.0.1:1"]]}')
    assert set(KnownMembers(note).members) == {1}
    os.utime(note, (1.0, 1.0))
    assert not KnownMembers(note).members


def test_the_member_book_is_written_after_changes_only(tmp_path: Path) -> None:
    book = KnownMembers(tmp_path / FILE)
    assert book.page() is None
    book.remember([Member(1, "h:1"), Member(2, "h:2")])
    page = book.page()
    assert page is not None
    book.write(page)
    book.remember([Member(1, "h:1")])
    assert book.page() is None
    assert KnownMembers(tmp_path / FILE).members == book.members

"""A pull that no tracker knew, with healthy storage."""

import asyncio
import dataclasses
import random
import socket
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads import lost_tracker
from p2pcache.agent.downloads.lost_tracker import FILE, LostTracker
from p2pcache.core.protocol.messages import EVERYBODY, Member, Swarm
from p2pcache.io.notes.known_members import KnownMembers
from p2pcache.io.tasks import Tasks
from tests.agent.jobs.warm_kit import until
from tests.agent.kit import agent, make_model, pull, push
from tests.tracker.kit import tracker

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


@pytest.mark.slow
async def test_a_node_that_was_in_no_swarm_knows_the_others_of_a_small_cluster(
    tmp_path: Path, origin: str, nobody: str
) -> None:
    async with tracker(tmp_path / "origin") as one, asyncio.timeout(60):
        url = f"http://{one.address}"
        async with agent(tmp_path, "b", origin=origin, tracker=url) as b:
            async with agent(tmp_path, "a", origin=origin, tracker=url) as a:
                await until(lambda: b.node in a.lost_tracker._book.members)
                assert not a.lost_tracker._everybody, "it would begin at once"
            assert (await pull(b, "m:v1"))["event"] == "done"
            async with agent(tmp_path, "a", origin=origin, tracker=nobody) as a:
                hurry(a)
                end = await pull(a, "m:v1")
    assert (end["event"], end["bytes_origin"]) == ("done", 0)


@pytest.fixture
def among_several() -> tuple[LostTracker, MagicMock]:
    """With the list of two nodes from one of several trackers. Also returns the agent's link."""
    link = MagicMock(fenced=True)
    lost = LostTracker(MagicMock(link=link, node=1), MagicMock(), MagicMock())
    lost.on_message(Swarm(EVERYBODY, 0, full=True, joined=(Member(1, "a:1"), Member(2, "b:1"))))
    assert lost._everybody
    return lost, link


@pytest.mark.parametrize("full", [True, False])
def test_the_list_of_former_trackers_is_not_complete_under_a_single_one(
    among_several: tuple[LostTracker, MagicMock], *, full: bool
) -> None:
    """It stayed, and a pull without the single tracker began at once among two of 59 nodes."""
    lost, link = among_several
    link.fenced = False
    lost.on_message(Swarm(EVERYBODY, 0, full=full, joined=(Member(3, "c:1"),)))
    assert not lost._everybody


def test_the_list_of_an_earlier_connection_is_not_complete(
    among_several: tuple[LostTracker, MagicMock],
) -> None:
    """A tracker of a large cluster tells a newcomer of no list at all."""
    lost, _ = among_several
    lost.tracker_up()
    assert not lost._everybody


async def test_nothing_looks_for_stranded_pulls_while_the_tracker_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten looks a second were a sixth of a slow pull's wake-ups."""
    looks: list[None] = []
    monkeypatch.setattr(lost_tracker, "LOOK_S", 0.001)
    monkeypatch.setattr(LostTracker, "_look", lambda _: looks.append(None))
    async with Tasks() as tasks:
        lost = LostTracker(MagicMock(tasks=tasks), MagicMock(), MagicMock())
        lost.start()
        await until(lambda: len(looks) > 2)
        lost.tracker_up()
        await asyncio.sleep(0.01)
        looks.clear()
        await asyncio.sleep(0.02)
        assert not looks
        lost.tracker_down()
        await until(lambda: len(looks) > 2)

"""The first second of an agent: the tracker isn't connected yet, the origin isn't open yet."""

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent import app as agent_app
from p2pcache.agent.downloads import resolver
from p2pcache.agent.node import origin_opener
from p2pcache.core.format.manifest import encode
from p2pcache.core.protocol import messages as m
from p2pcache.errors import UsageError
from p2pcache.io import origins
from tests.agent.kit import agent, client, make_model, pull, push
from tests.certs import Authority
from tests.tracker.kit import tracker

RUNS = 8


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"weights.bin": random.Random(3).randbytes(RUNS * 256 * 1024)}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return tmp_path / "origin"


async def test_a_pull_may_come_before_the_tracker_is_met(tmp_path: Path, origin: Path) -> None:
    async with (
        tracker(origin) as one,
        agent(tmp_path, tracker=f"http://{one.address}") as app,
    ):
        done = await pull(app, "team/m:v1")  # at once: nobody waited for the connection
        assert done["event"] == "done"


async def test_an_absent_tracker_is_an_error_at_once_after_the_first_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "FIRST_CONTACT_S", 60.0)
    async with agent(tmp_path, tracker="http://127.0.0.1:1") as app:
        await pull(app, "team/m:v1")
        start = time.monotonic()
        refused = await pull(app, "team/m:v1")
        assert refused["code"] == 8
        assert time.monotonic() - start < 30


async def test_leases_wait_for_an_origin_that_is_being_opened(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were given back as failed, and the tracker let a storm wait for their expiry."""
    quick_open, opens = origins.open_origin, threading.Event()

    def slow_open(url: str) -> Any:
        opens.wait(60)
        return quick_open(url)

    monkeypatch.setattr(origin_opener, "open_origin", slow_open)
    async with (
        tracker(origin) as one,
        agent(tmp_path, tracker=f"http://{one.address}") as app,
        client(app) as session,
    ):
        pulling = asyncio.create_task(pull(app, "team/m:v1"))  # noqa: TID251 - the test's own
        async with session.get("/readyz") as answer:
            assert answer.status == 503
        async with asyncio.timeout(30):
            while not one.tracking.totals()["granted"]:
                await asyncio.sleep(0.02)
        opens.set()
        done = await pulling
        assert done["event"] == "done"
        assert one.tracking.totals()["granted"] == RUNS
        async with session.get("/readyz") as answer:
            assert answer.status == 200


async def test_a_model_that_comes_during_the_announcement_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement didn't name it, and its own message was lost: no link stood yet."""
    layout = push(tmp_path / "origin", make_model(tmp_path / "model", {"w": b"1"}), "team/m:v1")
    plain = agent_app.AgentApp.announcement

    def announcement(app: agent_app.AgentApp) -> m.Announce:
        said = plain(app)
        model = app.store.add_model(layout, encode(layout.manifest))
        app.downloads.join_swarm(model, "team/m:v1")
        return said

    monkeypatch.setattr(agent_app.AgentApp, "announcement", announcement)
    async with tracker(tmp_path / "origin") as one:
        async with agent(tmp_path, tracker=f"http://{one.address}"), asyncio.timeout(30):
            while layout.digest not in one.tracking.swarms:
                await asyncio.sleep(0.02)


async def test_lease_reports_carry_the_trackers_epoch(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swarm that is younger than the connection said epoch 0, and its failures weren't heard."""
    sent: list[m.LeaseReport] = []
    async with (
        tracker(origin) as one,
        agent(tmp_path, tracker=f"http://{one.address}") as app,
    ):
        assert app.link is not None
        send = app.link.send

        def record(message: m.ToTracker) -> None:
            if isinstance(message, m.LeaseReport):
                sent.append(message)
            send(message)

        monkeypatch.setattr(app.link, "send", record)
        await pull(app, "team/m:v1")
        assert sent
        assert {report.epoch for report in sent} == {app.link.epoch}
        assert app.link.epoch != 0


@pytest.mark.parametrize("url", ["tracker:7400", "ftp://tracker:7400", "http://", "10.0.0.1:7400"])
async def test_a_tracker_that_is_no_url_is_a_usage_error(tmp_path: Path, url: str) -> None:
    """It was dialled for ever, with a warning in the log."""
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        async with agent(tmp_path, tracker=url):
            pass


async def test_a_pull_that_waits_for_a_dead_tracker_in_vain_names_it(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.agent.downloads.give_up.HOPELESS_S", 0.5)
    url = "http://127.0.0.1:1"
    async with agent(tmp_path, tracker=url, origin=origin.as_uri()) as app:
        ended = await pull(app, "team/m:v1")
    assert ended["code"] == 8
    assert url in ended["message"]


async def test_plain_http_to_a_tracker_whose_members_show_certificates(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files("hub", "tracker")
    async with (
        tracker(**files._asdict()) as hub,
        agent(tmp_path, tracker=f"http://{hub.address}") as app,
    ):
        assert app.link is not None
        await app.link.tried.wait()
        assert "https://" in app.queries.reasons()[0]

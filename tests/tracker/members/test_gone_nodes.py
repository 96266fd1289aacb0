"""A node that is gone leaves a trace: in the views, the metrics, the log."""

import asyncio
import logging

import pytest

from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.membership.registry import Registry
from p2pcache.core.membership.settings import MOST_NODES, REMEMBERED_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import MemberSettings
from p2pcache.tracker.app import TrackerApp
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import get, tracker


async def gone(app: TrackerApp) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (await get(app.address, "/v1/nodes"))[1]["gone"]
    return rows


async def until_gone(app: TrackerApp, count: int) -> list[dict[str, object]]:
    async with asyncio.timeout(10):
        while len(rows := await gone(app)) != count:
            await asyncio.sleep(0.02)
    return rows


async def test_lost_and_left_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with tracker(quick=True) as app:
        async with FakeAgent(7).member(app.address):  # its connection breaks without a word
            assert await gone(app) == []
        [lost] = await until_gone(app, 1)
        async with FakeAgent(8).member(app.address) as polite:
            await polite.send(m.Leaving())
            left, _ = await until_gone(app, 2)  # the latest first
        assert (lost["node"], lost["lost"], lost["address"]) == (
            f"{7:016x}",
            True,
            "127.0.0.1:7007",
        )
        assert (left["node"], left["lost"]) == (f"{8:016x}", False)
        text = (await get(app.address, "/metrics"))[1]
        for line in (
            "lost_members 1.0",
            "members_lost_total 1.0",
            "members_left_total 1.0",
            "members_joined_total 2.0",
        ):
            assert f"p2pcache_tracker_{line}\n" in text
        said = [one.getMessage() for one in caplog.records if one.levelno == logging.INFO]
        for node, word in ((7, "joined"), (7, "is lost"), (8, "left")):
            assert any(f"{node:016x}" in line and word in line for line in said), (node, word)
        async with FakeAgent(7).member(app.address):
            assert [row["node"] for row in await until_gone(app, 1)] == [f"{8:016x}"], "it is back"


def registry(count: int) -> Registry:
    made = Registry(MemberSettings())
    for node in range(1, count + 1):
        made.on_announced(node, m.Announce("h:1", "1"), 0.0)
    return made


def test_who_is_gone_is_remembered_for_an_hour_and_not_without_end() -> None:
    one = registry(MOST_NODES + 5)
    for node in range(1, MOST_NODES + 6):
        one.forget(node, float(node), lost=True)
    one.check()
    assert len(one.departed) == MOST_NODES
    assert 1 not in one.departed
    now = REMEMBERED_S + 5000.0
    assert min(one.departed_since(now - REMEMBERED_S)) == 5000


async def test_a_storm_of_members_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with tracker() as app:
        registry_ = app.tracking.registry
        for node in range(1, 2001):
            registry_.on_announced(node, m.Announce("h:1", "1"), 0.0)
            app.members.log.on_notice(Notice(Event.JOINED, node))
        lines = [
            one
            for one in caplog.records
            if "joined" in one.getMessage() and one.levelno == logging.INFO
        ]
        assert len(lines) < 150

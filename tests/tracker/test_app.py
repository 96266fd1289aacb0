"""The tracker as a whole: views, metrics, notes, and a restart in the middle of a storm."""

import asyncio
import contextlib
import functools
import json
import threading
import time
from pathlib import Path

import pytest

from p2pcache.core.protocol import messages as m
from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError, UsageError
from p2pcache.io.http import server
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.state_notes import FILE, StateNotes
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, get, publish, tracker


async def test_views_and_metrics(tmp_path: Path) -> None:
    publish(tmp_path)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        await agent.enter(X, 8)
        await agent.until(lambda: len(agent.origin_reads) == 8)
        await agent.ask("resolve", "team/model:v1")
        assert (await get(app.address, "/healthz")) == (200, {"ok": True})
        status, body = await get(app.address, "/v1/status")
        assert status == 200
        assert (body["members"], body["connected"], body["leases_granted"]) == (1, 1, 8)
        assert json.loads((await agent.ask("status")).data)["epoch"] == agent.epoch
        assert len(json.loads((await agent.ask("nodes")).data)["nodes"]) == 1
        _, text = await get(app.address, "/metrics")
        for line in (
            "p2pcache_tracker_members 1.0",
            "p2pcache_tracker_leases_granted_total 8.0",
            'p2pcache_tracker_asks_total{outcome="ok",what="resolve"} 1.0',
            'p2pcache_tracker_messages_total{kind="Enter"} 1.0',
            'p2pcache_tracker_origin_reads_total{kind="tag"} 1.0',
        ):
            assert line in text
        assert (await get(app.address, "/v1/nothing"))[0] == 404
        await agent.send(m.Exit(X))
        await agent.ask("status")
        _, body = await get(app.address, "/v1/status")
        assert (body["swarms"], body["leases_granted"]) == (0, 8)


@contextlib.asynccontextmanager
async def members(agents: list[FakeAgent], address: str):  # type: ignore[no-untyped-def]
    async with contextlib.AsyncExitStack() as stack:
        for agent in agents:
            await stack.enter_async_context(agent.member(address))
        yield


@pytest.mark.parametrize("notes", [False, True])
async def test_a_restart_in_a_storm_repeats_no_read(tmp_path: Path, *, notes: bool) -> None:
    agents = [FakeAgent(n) for n in range(1, 7)]
    everybody = {agent.node for agent in agents}
    state_dir = str(tmp_path) if notes else ""
    for agent in agents:
        agent.read_s = 0.1  # 25 rounds of 12: the storm isn't over when the tracker stops
        agent.credit = 2
    async with tracker(state_dir=state_dir) as app:
        async with members(agents, app.address):
            for agent in agents:
                await agent.enter(X, 300)
            for agent in agents:
                await agent.until(lambda a=agent: a.known.get(X) == everybody)  # type: ignore[misc]
            await agents[0].until(lambda: sum(len(a.origin_reads) for a in agents) > 12)
        address = app.address
    before = sum(len(a.origin_reads) for a in agents)
    assert 12 < before < 300
    for agent in agents:
        agent.read_s = 0.02
        agent.reading.clear()  # the fake stops reading when its connection breaks
    async with tracker(listen=address, state_dir=state_dir) as app, members(agents, app.address):
        assert app.address == address

        def proved() -> list[int]:
            return sorted(run for a in agents for run in range(300) if a.have[X] >> run & 1)

        async with asyncio.timeout(30):
            while len(proved()) < 300:
                await asyncio.sleep(0.02)
        assert proved() == list(range(300))
        extra = sum(len(a.origin_reads) for a in agents) - 300
        assert extra <= 16  # what was in flight


def test_notes_survive_and_age(tmp_path: Path) -> None:
    memory = StateNotes(tmp_path / "state")
    assert memory.load_members(1000.0) == {}
    memory.save_members({X: [1, 2**62]}, 1000.0)
    assert StateNotes(tmp_path / "state").load_members(1010.0) == {X: [1, 2**62]}
    assert StateNotes(tmp_path / "state").load_members(2000.0) == {}
    assert StateNotes(tmp_path / "state").load_members(900.0) == {}
    assert [p.name for p in (tmp_path / "state").iterdir()] == [FILE]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"format":1,"saved":1,"swarms":{"x":["zz"]}}', b"\xff",
     b'{"format":1,"saved":1000,"swarms":{"../x":["0000000000000001"]}}'],
)  # fmt: skip
def test_bad_notes_do_not_end_the_tracker(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert StateNotes(tmp_path).load_members(1000.0) == {}


def test_notes_of_a_newer_release_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text('{"format": 2, "saved": 1000, "members": []}')
    assert StateNotes(tmp_path).load_members(1000.0) == {}
    assert "format 2, this release knows 1" in caplog.text


def test_a_state_dir_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((UsageError, NotAllowed)):
        StateNotes(tmp_path / "file")
    StateNotes(None).save_members({X: [1]}, 1.0)


async def test_a_full_disk_under_the_notes_does_not_end_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = StateNotes(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    memory.save_members({X: [1]}, 1.0)
    assert "No space" in caplog.text
    assert list(tmp_path.iterdir()) == []


async def test_stopping_is_quick_with_members_and_a_hanging_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2pcache.io.origins.repo import OriginRepo

    answers = threading.Event()
    monkeypatch.setattr(OriginRepo, "get_tag", lambda *_: answers.wait(60))
    async with contextlib.AsyncExitStack() as outer:
        async with tracker(tmp_path) as app:
            agent = await outer.enter_async_context(FakeAgent(1).member(app.address))
            await agent.send(m.Ask(1, "resolve", "a:b"))
            await agent.ask("status")
            began = time.monotonic()
        assert time.monotonic() - began < 30
        answers.set()


def test_a_taken_port_is_a_clear_error() -> None:
    sock = server.listen_tcp("127.0.0.1:0")

    async def start() -> None:
        async with tracker(listen=server.bound_address(sock)):
            pass

    with sock, pytest.raises(UsageError, match="in use"):
        asyncio.run(start())


def test_the_app_needs_no_loop_to_be_built() -> None:
    assert TrackerApp(TrackerSettings()).address == "127.0.0.1:7400"


async def test_an_origin_that_cannot_be_had_is_in_the_log_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = (tmp_path / "nowhere").as_uri()
    async with tracker(url) as app:
        status, body = await get(app.address, "/readyz")
        assert (status, body["ready"]) == (503, False)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any(text.startswith("not ready: origin: ") and "nowhere" in text for text in warned)


async def test_looks_for_what_is_to_be_kept_do_not_make_a_tracker_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They fail softly. The tracker was ready between two probes, and said so each time that it was not."""
    caplog.set_level("INFO")
    async with tracker((tmp_path / "nowhere").as_uri()) as app:
        for _ in range(2):
            await app._probe()
            with pytest.raises(P2PCacheError):
                await app.keeping.wishes.read_intents()
            assert (await get(app.address, "/readyz"))[0] == 503
        (tmp_path / "nowhere").mkdir()
        await app._probe()
        assert (await get(app.address, "/readyz"))[0] == 200
    told = [r.getMessage() for r in caplog.records if r.name.endswith("tracker.app")]
    assert [t.partition(":")[0] for t in told if "ready" in t] == ["not ready", "ready"]


def test_trouble_of_one_kind_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways put an id into each answer, and storage that is silent has three texts: each was a line."""
    caplog.set_level("INFO")
    app = TrackerApp(TrackerSettings())
    for now, error in (
        (0.0, NotAllowed("403, request 1")),
        (5.0, NotAllowed("403, request 2")),
        (59.0, NotAllowed("403, request 3")),
        (61.0, NotAllowed("403, request 4")),
        (62.0, OriginUnavailable("no answer")),
        (63.0, OriginUnavailable("no answer within 8 s")),
        (64.0, None),
        (65.0, None),
        (66.0, OriginUnavailable("no answer")),
    ):
        monkeypatch.setattr(app._clock, "now", functools.partial(float, now))
        monkeypatch.setattr(Catalog, "trouble", error)
        app._log_trouble()
    told = [r.getMessage().removeprefix("not ready: origin: ") for r in caplog.records]
    requests = ["403, request 1", "403, request 4"]
    assert told == [*requests, "no answer", "ready", "no answer"]

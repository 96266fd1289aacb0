"""Two trackers over one store, in this process: who is active, what the other one says, how it changes."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from p2pcache.core.format.tenure_record import TenureRecord
from p2pcache.core.protocol import messages as m
from p2pcache.errors import Unreachable, UsageError
from p2pcache.io.http import server
from p2pcache.io.service_manager import Notifier
from p2pcache.io.tenures.in_kubernetes import KubernetesTenure
from p2pcache.io.tenures.in_origin import OriginTenure
from p2pcache.io.tenures.store import TenureStore
from p2pcache.tracker import main
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.tenure.candidacy import Candidacy, open_candidacy, own_url
from tests.io.tenures.kube_leases import account, leases
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, get

QUICK_S = 1.0  # of a tenure
WAIT_S = 20.0
Y = "cd" * 32


class Turns:
    """One tracker that takes turns."""

    def __init__(self, store: TenureStore, origin: Path) -> None:
        self.sock = server.listen_tcp("127.0.0.1:0")
        self.address = server.bound_address(self.sock)
        self.url = f"http://{self.address}"
        self.settings = TrackerSettings(origin=origin.as_uri(), lease="origin")
        self.store = store
        self.tenure = Candidacy(store, self.url, ttl_s=QUICK_S)
        self.stop: Any = SimpleNamespace(asked=asyncio.Event())
        self.stop.wait = self.stop.asked.wait
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        work = main.take_turns(self.settings, self.tenure, self.sock, self.stop, Notifier())
        self.task = asyncio.get_running_loop().create_task(work)

    async def end(self) -> None:
        self.stop.asked.set()
        assert self.task is not None
        await self.task

    async def kill(self) -> None:
        """End without a word to the store."""
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.sock.close()

    async def until_role(self, role: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    _, status = await get(self.address, "/v1/status")
                    if status.get("role") == role and (role == "active" or status["active"]):
                        return dict(status)
                await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _no_hangups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "on_hangup", lambda _: None)


@contextlib.asynccontextmanager
async def pair(
    one: TenureStore, two: TenureStore, origin: Path
) -> AsyncIterator[tuple[Turns, Turns]]:
    """The first is active, the second a standby."""
    a, b = Turns(one, origin), Turns(two, origin)
    a.begin()
    try:
        await a.until_role("active")
        b.begin()
        await b.until_role("standby")
        yield a, b
    finally:
        for each in (a, b):
            if each.task is not None and not each.task.done():
                await each.end()
            each.sock.close()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Turns, Turns]]:
    def store() -> OriginTenure:
        return OriginTenure(tmp_path.as_uri(), "t")

    async with pair(store(), store(), tmp_path) as both:
        yield both


async def raw(address: str, path: str) -> tuple[int, dict[str, str], Any]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{address}{path}", allow_redirects=False) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.json()


# -- what a standby says -----------------------------------------------------------------------------


async def test_a_standby_says_what_it_is_and_sends_people_on(two: tuple[Turns, Turns]) -> None:
    a, b = two
    code, ready = await get(b.address, "/readyz")
    assert (code, ready["ready"], ready["role"], ready["active"]) == (200, True, "standby", a.url)
    assert (await get(a.address, "/readyz"))[1]["role"] == "active"
    assert await get(b.address, "/healthz") == (200, {"ok": True})
    for path in ("/", "/v1/nodes", "/v1/swarms?x=1", "/v1/locate?ref=m"):
        status, headers, body = await raw(b.address, path)
        assert (status, headers["Location"]) == (307, a.url + path)
        assert (body["code"], body["active"]) == (8, a.url)
    _, text = await get(b.address, "/metrics")
    values = {f.name: f.samples[0].value for f in text_string_to_metric_families(text)}
    assert values["p2pcache_tracker_active"] == 0
    assert values["p2pcache_tracker_generation"] == a.tenure.generation
    _, text = await get(a.address, "/metrics")
    assert "p2pcache_tracker_active 1.0" in text


async def test_a_standby_sends_nobody_to_an_active_tracker_that_is_silent(
    two: tuple[Turns, Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser that was sent to a frozen process waited there, also when the standby had taken over."""
    monkeypatch.setattr("p2pcache.tracker.tenure.standby.SILENT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel takes connections for it
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        monkeypatch.setattr(Candidacy, "active_url", url)
        status, headers, body = await raw(two[1].address, "/v1/nodes")
        assert (status, "Location" in headers) == (503, False)
        assert f"{url} didn't answer" in body["message"]
        assert "takes over within 10 s" in body["message"]
    status, headers, _ = await raw(two[1].address, "/v1/nodes")
    assert (status, headers["Location"]) == (307, f"{url}/v1/nodes"), "others may reach it"


async def test_an_agent_at_a_standby_hears_who_is_active(two: tuple[Turns, Turns]) -> None:
    a, b = two
    guest = FakeAgent(1)
    async with guest.member(b.address, announce=False):
        assert (await guest.wait_for(m.Standby)).active == a.url
        await guest.announce()
        await guest.beat()
        assert not any(isinstance(x, m.Settled) for x in guest.mail)


async def test_an_active_tracker_says_that_its_epoch_is_a_generation(
    two: tuple[Turns, Turns],
) -> None:
    a, _ = two
    member = FakeAgent(1)
    async with member.member(a.address):
        settled = await member.wait_for(m.Settled)
        assert settled.fenced
        assert settled.epoch == a.tenure.generation


# -- takeovers ---------------------------------------------------------------------------------------


async def test_a_killed_tracker_is_replaced_and_waiting_agents_are_told(
    two: tuple[Turns, Turns],
) -> None:
    a, b = two
    before = a.tenure.generation
    guest = FakeAgent(1)
    async with guest.member(b.address, announce=False):
        await guest.wait_for(m.Standby)
        await a.kill()
        began = time.monotonic()
        assert await guest.wait_closed() == aiohttp.WSCloseCode.GOING_AWAY
        assert QUICK_S / 2 < time.monotonic() - began < WAIT_S
    status = await b.until_role("active")
    assert status["epoch"] > before


async def test_a_tracker_that_ends_gives_its_tenure_back(two: tuple[Turns, Turns]) -> None:
    a, b = two
    written: list[TenureRecord] = []
    write = a.store.write

    async def note(record: TenureRecord, expect: str | None) -> str:
        written.append(record)
        return await write(record, expect)

    a.store.write = note  # type: ignore[method-assign]
    await a.end()
    assert written[-1].holder == ""
    await b.until_role("active")


async def test_a_tracker_that_was_held_up_grants_nothing_and_finds_its_generation_old(
    two: tuple[Turns, Turns], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = two
    held, look, write = asyncio.Event(), a.store.look, a.store.write

    async def late_look() -> Any:
        await held.wait()
        return await look()

    async def late_write(record: TenureRecord, expect: str | None) -> str:
        await held.wait()
        return await write(record, expect)

    member = FakeAgent(1)
    member.credit = 4
    async with member.member(a.address):
        await member.enter(X, 4)
        await member.until(lambda: len(member.origin_reads) == 4)
        a.store.look, a.store.write = late_look, late_write  # type: ignore[method-assign]
        await b.until_role("active")
        assert a.tenure.active
        await member.enter(Y, 4)
        await member.until(lambda: Y in member.known)  # it is heard, and gets no leases
        await member.beat()
        assert (await get(a.address, "/readyz"))[0] == 503
        with pytest.raises(Unreachable, match="active"):  # two might write tags
            await member.ask("tag_put", f'{{"ref": "m:v1", "digest": "{X}"}}')
        assert len(member.origin_reads) == 4
        held.set()
        assert await member.wait_closed() == aiohttp.WSCloseCode.GOING_AWAY
        assert len(member.origin_reads) == 4
    assert (await a.until_role("standby"))["active"] == b.url
    assert f"in time; {b.url} is active" in caplog.text


async def test_a_deleted_record_ends_the_tenure(
    two: tuple[Turns, Turns], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two are active for a moment; the store lets one of them go on, with a greater generation."""
    a, b = two
    before = a.tenure.generation
    (tmp_path / "p2pcache/v1/trackers/t").unlink()
    async with asyncio.timeout(WAIT_S):
        while (
            max(a.tenure.generation, b.tenure.generation) == before
            or a.tenure.active == b.tenure.active
        ):
            await asyncio.sleep(0.02)
    winner = a if a.tenure.active else b
    loser = b if winner is a else a
    told = ("the record was deleted", f"wrote itself into the record; {winner.url} is active")
    assert any(text in caplog.text for text in told)
    assert f"{loser.url} is active" not in caplog.text
    assert (await winner.until_role("active"))["epoch"] > before
    await loser.until_role("standby")


async def test_kubernetes_leases_do_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "account"
    folder.mkdir()
    async with leases(account(folder)) as kube:

        def store() -> KubernetesTenure:
            return KubernetesTenure(kube.api(), "p2pcache-tracker")

        async with pair(store(), store(), tmp_path) as (a, b):
            holder = kube.objects["p2pcache-tracker"]["spec"]["holderIdentity"]
            await a.kill()
            await b.until_role("active")
            assert kube.objects["p2pcache-tracker"]["spec"]["holderIdentity"] != holder
            kube.failure = (500, "{}")
            async with asyncio.timeout(WAIT_S):
                while b.tenure.may_act():
                    await asyncio.sleep(0.02)
            assert b.tenure.reasons()
            kube.failure = None
            await b.until_role("active")
        assert kube.objects["p2pcache-tracker"]["spec"]["holderIdentity"] == ""


async def test_a_short_outage_of_the_store_costs_no_members(two: tuple[Turns, Turns]) -> None:
    a, _ = two
    member = FakeAgent(1)
    async with member.member(a.address):
        look, write, before = a.store.look, a.store.write, a.tenure.generation

        async def away(*_: object) -> Any:
            raise Unreachable("away")

        a.store.look = a.store.write = away  # type: ignore[method-assign,assignment]
        await asyncio.sleep(0.5 * QUICK_S)  # a call fails after 0.3 of it, at the latest
        reasons = a.tenure.reasons()
        assert reasons
        a.store.look, a.store.write = look, write  # type: ignore[method-assign]
        async with asyncio.timeout(WAIT_S):
            while a.tenure.reasons():
                await asyncio.sleep(0.02)
        assert a.tenure.holds(before)
        assert member.closed is None


# -- settings ----------------------------------------------------------------------------------------


def test_the_url_that_others_are_told() -> None:
    listen = "127.0.0.1:0"
    assert own_url(TrackerSettings(listen=listen), 7400) == "http://127.0.0.1:7400"
    told = TrackerSettings(listen=listen, advertise="[fd00::1]:7401", tls_cert="x")
    assert own_url(told, 7400) == "https://[fd00::1]:7401"
    anywhere = own_url(TrackerSettings(listen="0.0.0.0:7400"), 7400)
    assert anywhere.endswith(":7400")
    assert "0.0.0.0" not in anywhere
    with pytest.raises(UsageError, match="HOST:PORT"):
        own_url(TrackerSettings(listen=listen, advertise="nowhere"), 7400)


def test_settings_that_cant_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="--origin"):
        open_candidacy(TrackerSettings(lease="origin"), 7400)
    with pytest.raises(UsageError, match="pod"):
        open_candidacy(TrackerSettings(lease="kubernetes"), 7400)

"""The page at GET /: what is served, and a hostile member's words in a real Chromium."""

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest
from msgspec import structs

from p2pcache.core.protocol import messages as m
from p2pcache.tracker.answers import KEEP_S
from tests.tracker.browser import CHROMIUM, Page, browser
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, get, tracker

NASTY = "<img src=x onerror=window.hacked=1>\"'><script>window.hacked=1</script>&amp;"
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here; .ci/install-tools installs it"
)
ROWS = "document.querySelectorAll('#nodes tbody tr').length"
CARDS = "document.getElementById('models').children.length"


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browser() as tab:
        yield tab


class Talker(FakeAgent):
    """A member that says whatever it likes about itself and its model."""

    label, text, taken = "team/m:v1", "", (600, 400, 0)

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.credit = 0

    def state(self, digest: str) -> m.SwarmState:
        said = super().state(digest)
        return structs.replace(said, label=self.label, total_bytes=1000, taken=self.taken)

    async def announce(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(
            m.Announce("127.0.0.1:1", f"9{self.text}", self.text, self.text, states, self.text)
        )


async def test_files_headers_and_nothing_from_elsewhere() -> None:
    async with tracker() as app, aiohttp.ClientSession(f"http://{app.address}") as http:
        for path, kind in (
            ("/", "text/html"), ("/page/page.css", "text/css"),
            ("/page/page.js", "text/javascript"), ("/page/icon.svg", "image/svg+xml"),
        ):  # fmt: skip
            async with http.get(path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'")
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                text = await answer.text()
            assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.]+", text), path
            assert "innerHTML" not in text
        async with http.post("/") as answer:
            assert answer.status == 405


async def test_one_swarm_with_its_members() -> None:
    async with tracker() as app, Talker(1).member(app.address) as one:
        await one.enter(X, 8, 0b1111)
        async with Talker(2).member(app.address) as two:
            await two.enter(X, 8, 0xFF)
            await two.ask("status")
            status, body = await get(app.address, f"/v1/swarm?digest={X}")
            assert status == 200
            assert [row["share"] for row in body["members"]] == [0.5, 1.0]
            assert body["members"][0]["bytes_peers"] == 600
            assert (body["label"], body["bytes"], body["left_out"]) == ("team/m:v1", 1000, 0)
            assert (body["bytes_origin"], body["alpha"], body["share"]) == (800, 0.8, 0.75)
        for absent in ("", "ff" * 32, "x"):
            assert (await get(app.address, f"/v1/swarm?digest={absent}"))[0] == 404


async def test_metrics_of_a_swarm() -> None:
    one = Talker(1)
    one.label = 'a"b\\'
    async with tracker() as app, one.member(app.address):
        await one.enter(X, 8)
        await one.ask("status")
        _, text = await get(app.address, "/metrics")
        key = f'digest="{X}",model="a\\"b\\\\"'
        assert f'p2pcache_tracker_swarm_received_bytes_total{{{key},source="origin"}} 400.0' in text
        assert f"p2pcache_tracker_swarm_size_bytes{{{key}}} 1000.0" in text
        assert f"p2pcache_tracker_swarm_leases_limit{{{key}}} 4.0" in text


async def test_dear_answers_are_built_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.tracker.answers.DEAR_S", 0.0)
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("p2pcache.tracker.answers.time", clock)
    async with tracker() as app:
        assert (await get(app.address, "/v1/nodes"))[1] == {"nodes": [], "gone": []}
        async with FakeAgent(1).member(app.address):
            assert (await get(app.address, "/v1/nodes"))[1] == {"nodes": [], "gone": []}
            now[0] += KEEP_S
            assert len((await get(app.address, "/v1/nodes"))[1]["nodes"]) == 1


async def test_strangers_build_no_figures_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many models each answer costs milliseconds of the loop that the members wait for."""
    monkeypatch.setattr("p2pcache.tracker.answers.DEAR_S", 0.0)
    monkeypatch.setattr("p2pcache.tracker.answers.KEEP_S", 600.0)
    one = Talker(1)
    async with tracker() as app, one.member(app.address):
        await one.enter(X, 8)
        await one.ask("status")
        for path in ("/metrics", f"/v1/swarm?digest={X}", "/v1/swarms"):
            before = await get(app.address, path)
            await one.enter("cd" * 32, 8)
            await one.enter(X, 8, 0b11)
            await one.ask("status")
            assert await get(app.address, path) == before
        for number in range(100):
            await get(app.address, f"/v1/swarm?digest={number}")
        assert len(app._answers._kept) <= 4  # unknown ones leave nothing


@needs_chromium
@pytest.mark.slow
async def test_words_of_members_are_text(page: Page) -> None:
    async with tracker() as app:
        liar = Talker(1)
        liar.text = liar.label = NASTY
        async with liar.member(app.address):
            await liar.enter(X, 8, 0b11)
            await page.open(f"http://{app.address}/#model={X}")
            await page.wait(f"{ROWS} == 1 && !document.getElementById('detail').hidden")
            shown = await page.run("document.body.innerText")
            assert shown.count(NASTY) >= 4  # node, model, detail, member
            assert await page.run("window.hacked === undefined")
            assert await page.run("document.querySelectorAll('img').length") == 1  # our own icon
            assert page.complaints == []
            assert all(url.startswith(f"http://{app.address}/") for url in page.requests)


@needs_chromium
@pytest.mark.slow
async def test_two_versions_of_one_name_are_told_apart(page: Page) -> None:
    async with tracker() as app:
        talker, other = Talker(1), "5" * 64
        talker.label = "Team/A:v1"
        async with talker.member(app.address):
            await talker.enter(X, 8, 0b11)
            await page.open(f"http://{app.address}/")
            await page.wait(f"{CARDS} == 1")
            assert "Team/A:v1 (" not in await page.run("document.body.innerText")
            await talker.enter(other, 8, 0b11)
            await page.wait(f"{CARDS} == 2")
            shown = await page.run("document.body.innerText")
            assert f"Team/A:v1 ({other[:12]})" in shown
            assert f"Team/A:v1 ({X[:12]})" in shown


@needs_chromium
@pytest.mark.slow
async def test_empty_narrow_and_lost(page: Page) -> None:
    async with tracker() as app:
        await page.open(f"http://{app.address}/", width=360, height=740, dark=True)
        await page.wait("/ready/.test(document.getElementById('state').textContent)")
        for empty in ("models-empty", "nodes-empty"):
            assert await page.run(f"!document.getElementById('{empty}').hidden")
        assert f"--tracker http://{app.address}" in await page.run("document.body.innerText")
        talker = Talker(1)
        talker.text, talker.label = "a-very-long-rack-" * 14, "team/" + "long" * 20
        async with talker.member(app.address):
            await talker.enter(X, 8, 0b11)
            await page.wait(f"{ROWS} == 1")
            assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.complaints == []
    await page.wait("document.getElementById('state').textContent == 'no answer'")
    assert "Trying again" in await page.run("document.getElementById('trouble').textContent")

"""The page in a real Chromium, over a real tracker with 100 members and 200 models."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from p2pcache.core.protocol import messages as m
from p2pcache.tracker.app import TrackerApp
from tests.tracker.browser import CHROMIUM, Page, browser
from tests.tracker.crowd import (
    GB,
    Held,
    Resident,
    digest_of,
    label_of,
    members,
    residents,
    size_of,
)
from tests.tracker.kit import X, tracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; .ci/install-tools installs it"),
]
NASTY = "<img src=x onerror=window.hacked=1>"
MODELS = "#models-table tbody tr"
FAILED = 199  # the model whose pull failed
STOPPED = 201  # the model whose bytes in storage are wrong
HIDDEN = "document.getElementById('detail').hidden"
IN_VIEW = """(() => {{
  const place = document.querySelector({0!r}).getBoundingClientRect();
  return place.top >= 0 && place.bottom <= innerHeight;
}})()"""


def count(selector: str) -> str:
    return f"document.querySelectorAll({selector!r}).length"


def texts(selector: str) -> str:
    return f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)"


def row(digest: str) -> str:
    return f'[data-key="{digest}"]'


async def choose(page: Page, field: str, value: str) -> None:
    await page.run(
        f"(() => {{ const field = document.getElementById({field!r}); field.value = {value!r};"
        " field.dispatchEvent(new Event('input', { bubbles: true }));"
        " field.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )


async def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        await page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key,
            windowsVirtualKeyCode={"Escape": 27, "Enter": 13}[key], text="\r" if key == "Enter" else "",
        )  # fmt: skip


class Misreader(Resident):
    """It reads wrong bytes in storage."""

    def __init__(self, node: int) -> None:
        super().__init__(node, f"reader-{node}")
        self.hold(digest_of(STOPPED), Held(label_of(STOPPED), GB, pulled=True), 0)

    def state(self, digest: str) -> m.SwarmState:
        return structs.replace(super().state(digest), credit=1)

    async def _behave(self, message: m.ToAgent) -> None:
        if isinstance(message, m.Grant):
            await self.send(m.LeaseReport(message.digest, message.epoch, mismatched=message.runs))
        else:
            await super()._behave(message)


@pytest.fixture
async def crowded() -> AsyncIterator[TrackerApp]:
    """A tracker in whose cluster a pull failed, one was cancelled, one node left and one is lost."""
    crowd = residents(100, 200)
    crowd[3].name = NASTY + "a-very-long-node-name-" * 9
    for number, model, code in ((5, FAILED, 5), (6, 198, 130)):
        crowd[number].hold(digest_of(model), Held(label_of(model), size_of(model), peers=GB), 0.25)
        crowd[number].end(digest_of(model), code)
    async with tracker() as app:
        async with members(app.address, crowd):
            async with Resident(500, "polite").member(app.address) as polite:
                await polite.send(m.Leaving())
                async with Resident(501, "mute").member(app.address):
                    pass
            async with Misreader(601).member(app.address), Misreader(602).member(app.address):
                async with asyncio.timeout(20):
                    while app.tracking.swarms[digest_of(STOPPED)].doubts.stop is None:
                        await asyncio.sleep(0.05)
                yield app


async def test_many_models_and_nodes(crowded: TrackerApp) -> None:
    async with browser() as page:
        await page.open(f"http://{crowded.address}/", width=1280)
        await page.wait(f"{count(MODELS)} == 201 && {count('#nodes tbody tr')} >= 101")
        await page.wait(f"{count('#pulls tbody tr')} >= 2", 30)
        await _trouble_first_then_natural(page)
        await _search_and_filter(page)
        await _a_model_beside_the_page(page)
        await _a_node_beside_the_page(page)
        await page.wait("/mute is lost|mute was lost/.test(document.body.innerText)", 30)
        assert await page.run(
            "document.querySelector('#nodes tbody td').textContent.startsWith('mute')"
        )
        assert await page.run("window.hacked === undefined")
        assert page.complaints == []
        assert all(url.startswith(f"http://{crowded.address}/") for url in page.requests)


async def _trouble_first_then_natural(page: Page) -> None:
    await page.wait(f"/failed on 1 node/.test({texts(f'{MODELS} .chip')}[1])", 30)
    names: list[str] = await page.run(texts(f"{MODELS} .name"))
    assert names[:2] == [label_of(STOPPED), label_of(FAILED)]
    states: list[str] = await page.run(texts(f"{MODELS} .chip"))
    assert ["pulling" in state for state in states[2:5]] == [True] * 3
    assert states[0] == "stopped"
    rest = names[5:]
    assert rest == sorted(rest, key=lambda name: [int(x) for x in name[5:-3].split("/model-")])
    [failed, cancelled] = [
        text for text in await page.run(texts("#pulls .chip")) if not text.startswith("complete")
    ][::-1][:2]
    assert {failed, cancelled} == {"failed at 25 %: no space (5)", "cancelled at 25 %"}


async def _search_and_filter(page: Page) -> None:
    await choose(page, "models-search", "model-10")
    assert await page.run(count(MODELS)) == 11  # 10, and 100 to 109
    await choose(page, "models-search", digest_of(77)[:12])
    assert await page.run(texts(f"{MODELS} .name")) == [label_of(77)]
    await choose(page, "models-search", "no such thing")
    assert not await page.run("document.getElementById('models-none').hidden")
    await choose(page, "models-search", "")
    await choose(page, "models-filter", "trouble")
    assert await page.run(texts(f"{MODELS} .name")) == [label_of(STOPPED), label_of(FAILED)]
    await choose(page, "models-filter", "")
    await choose(page, "models-order", "size")
    first = await page.run(f"document.querySelector({MODELS!r} + ' .name').textContent")
    assert first in {label_of(number) for number in range(39, 200, 40)}
    await choose(page, "models-order", "state")
    await choose(page, "nodes-search", "rack-3")
    racks = await page.run(texts("#nodes tbody td:nth-child(3)"))
    assert set(racks) == {"rack-3"}
    await choose(page, "nodes-search", "")
    await choose(page, "pulls-filter", "failed")
    assert await page.run(f"{texts('#pulls .chip')}.every((text) => !/^c/.test(text))")
    await choose(page, "pulls-filter", "")


async def _a_model_beside_the_page(page: Page) -> None:
    digest = digest_of(150)
    button = f"{row(digest)} .name"
    await page.run(f"document.querySelector({button!r}).focus()")
    await press(page, "Enter")
    await page.wait(f"!{HIDDEN} && location.hash == '#model={digest}'")
    await page.wait("document.activeElement.id == 'detail-title'")
    assert label_of(150) in await page.run("document.getElementById('detail-title').textContent")
    assert (
        await page.run(f"document.querySelector({button!r}).getAttribute('aria-expanded')")
        == "true"
    )
    assert await page.run(IN_VIEW.format(button)), "the list stays where it was read"
    assert await page.run(count("#members .member")) > 0
    await press(page, "Escape")
    await page.wait(HIDDEN)
    assert await page.run(f"document.activeElement == document.querySelector({button!r})")


async def _a_node_beside_the_page(page: Page) -> None:
    await page.run(f"location.hash = 'node={6:016x}'")
    await page.wait("/gpu-node-6/.test(document.getElementById('detail-title').textContent)")
    said = await page.run("document.getElementById('detail').innerText")
    events = await page.run("document.getElementById('events').innerText")
    assert f"read wrong bytes in storage: the model is stopped {label_of(STOPPED)}" in events
    for text in (
        "900 GB free",
        "failed at 25 %: no space (5)",
        "1 failed pull",
        "joined",
        label_of(FAILED),
    ):
        assert text in said
    assert await page.run(count("#members .member")) == 26
    await page.run("document.getElementById('detail-close').click()")
    await page.wait(HIDDEN)


async def test_a_link_leads_to_its_model_on_a_phone(crowded: TrackerApp) -> None:
    digest = digest_of(150)
    async with browser() as page:
        await page.open(f"http://{crowded.address}/#model={digest}", width=400, height=800)
        await page.wait(f"!{HIDDEN} && {count('#members .member')} > 0")
        assert await page.run(IN_VIEW.format(row(digest))), (
            "the list behind the panel is at its model"
        )
        assert (
            await page.run("document.getElementById('detail').getBoundingClientRect().width") == 400
        )
        await page.run("document.getElementById('detail-close').click()")
        await page.wait(HIDDEN)
        for part in ("document.documentElement", "document.querySelector('#nodes')"):
            assert await page.run(f"{part}.scrollWidth <= innerWidth")
        await choose(page, "models-search", "team-0/model-5:")
        await page.run(f"location.hash = 'model={digest}'")
        await page.wait(f"{count(row(digest))} == 1", 10)  # a link beats what was searched for
        gone = "ab" * 32
        await page.run(f"location.hash = 'model={gone}'")
        await page.wait("/No node has or wants/.test(document.getElementById('detail').innerText)")
        assert page.complaints == []


class Nasty(Resident):
    """Its model, too, is called like markup."""

    def __init__(self, node: int) -> None:
        super().__init__(node, NASTY, NASTY)
        self.hold(X, Held(NASTY, GB, pulled=True), 0.5)


async def test_the_history_of_a_hostile_member_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tracker() as app, browser() as page:
        async with Nasty(1).member(app.address) as liar:
            liar.end(X, 6)
            await liar.beat()
            await liar.send(m.Leaving())
            for number in range(2, 10):
                async with Nasty(number).member(app.address) as other:
                    await other.beat()
            await page.open(f"http://{app.address}/#node={1:016x}")
            await page.wait(f"{count('#pulls tbody tr')} > 0 && !{HIDDEN}")
            shown: str = await page.run("document.body.innerText")
            assert shown.count(NASTY) >= 6
            assert "wrong bytes (6)" in shown
            await asyncio.sleep(0.5)
            found: Any = await page.run(
                "[window.hacked === undefined, document.querySelectorAll('img').length]"
            )
            assert found == [True, 1]
            assert page.complaints == []

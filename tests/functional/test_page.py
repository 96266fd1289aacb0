"""The tracker's page in a real Chromium, over a real cluster: nodes appear, a pull moves."""

from pathlib import Path

import pytest

from tests.functional.node import MakeCluster, Pull, push
from tests.tracker.browser import CHROMIUM, browser

SHARE = "parseFloat(document.querySelector('.model .right').textContent)"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; .ci/install-tools installs it")
async def test_nodes_appear_and_a_pull_moves(make_cluster: MakeCluster, model: Path) -> None:
    # 24 MiB at 2 MB/s on each of two nodes: long enough for two heartbeats on the way.
    slow = ["--origin-bytes-per-s", "1500kB", "--download-bytes-per-s", "1500kB"]
    cluster = make_cluster(agents=2, agent_flags=slow)
    push(cluster, model, "team/one:v1")
    async with browser() as page:
        await page.open(cluster.tracker_url)
        await page.wait("document.querySelectorAll('#nodes tbody tr').length == 2")
        assert await page.run("document.getElementById('state').textContent") == "ready"
        pulls = [Pull(agent, "team/one:v1") for agent in cluster.agents]
        await page.wait("document.querySelectorAll('.model').length == 1")
        await page.run("document.querySelector('.model').click()")
        await page.wait("document.querySelectorAll('.member').length == 2")
        await page.wait(
            "/B\\/s, .* left/.test(document.querySelector('.member .note').textContent)", 30
        )
        name = await page.run("document.querySelector('.model .name').textContent")
        assert name == "team/one:v1"
        first = await page.wait(f"{SHARE} > 0 && {SHARE} < 100 ? {SHARE} : 0", 30)
        await page.wait(f"{SHARE} > {first}", 30)
        for pull in pulls:
            pull.wait()
        await page.wait("document.querySelector('.model .right').textContent == '100 %'")
        facts = await page.run("document.querySelector('.model .facts').textContent")
        assert "2 copies" in facts
        full = await page.run(
            "[...document.querySelectorAll('#nodes .bar')].map((b) => b.getAttribute('aria-label'))"
        )
        assert [" kept" in label for label in full] == [True, True], full
        # Each agent tells with its next heartbeat how its pull ended.
        await page.wait("document.querySelectorAll('#pulls tbody tr').length == 2", 30)
        ended = await page.run("document.querySelector('#pulls tbody').innerText")
        assert ended.count("complete") == ended.count("team/one:v1") == 2
        assert page.complaints == []
        await page.wait("[...document.querySelectorAll('.member .share')]"
                        ".every((s) => s.textContent == '100 %')")  # fmt: skip
        sources = await page.run("document.querySelector('.model .sources').textContent")
        assert "storage 25" in sources
        assert "(1.0" in sources  # alpha: read once
        assert page.complaints == []
        assert all(url.startswith(cluster.tracker_url + "/") for url in page.requests)

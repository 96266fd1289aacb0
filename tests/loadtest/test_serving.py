"""The engine's stand-in, and what a phase tells."""

from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from loadtest.serving.__main__ import Phase
from loadtest.serving.engine import ANSWER_BYTES, BUCKETS, METRIC, Engine
from p2pcache.io.host.engine_latency import EngineMetrics


async def test_the_stand_in_answers_and_the_governor_understands_its_metrics(
    tmp_path: Path,
) -> None:
    async with TestClient(TestServer(Engine(tmp_path).application())) as client:
        asked = EngineMetrics(str(client.make_url("/metrics")), METRIC, max(BUCKETS))
        assert await asked.level() == 0
        for _ in range(5):
            async with client.get("/answer") as answer:
                assert len(await answer.read()) == ANSWER_BYTES
        level = await asked.level()
        assert level is not None
        assert 0 < level <= 1


def test_a_phase_in_figures() -> None:
    latencies = [0.001 * (n + 1) for n in range(100)]
    told = Phase("auto", 12.345, latencies, [1.0, 0.5], ["", "link"]).told()
    assert told["p50_ms"] == 50.5
    assert told["p99_ms"] > 99
    assert told["worst_ms"] == 100
    assert (told["share_mean"], told["share_least"], told["causes"]) == (0.75, 0.5, {"link": 1})
    assert Phase("idle", 8, latencies, [], []).told()["share_mean"] is None

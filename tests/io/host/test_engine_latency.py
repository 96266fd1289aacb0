"""An engine's latency, asked of a real HTTP server."""

import contextlib
import math
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from p2pcache.errors import UsageError
from p2pcache.io.host.engine_latency import EngineMetrics, quantile

NAME = "vllm:time_to_first_token_seconds"


class Engine:
    """Metrics as vLLM has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            NAME, "of requests", ["model"], registry=self.registry, buckets=(0.1, 0.5, 1, 5)
        )
        self.waiting = Gauge("engine_delay_seconds", "now", registry=self.registry)
        self.body: bytes | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async def answer(_request: web.Request) -> web.Response:
            return web.Response(body=self.body or generate_latest(self.registry))

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
        finally:
            await runner.cleanup()

    def answered(self, seconds: float, times: int = 1, model: str = "a") -> None:
        for _ in range(times):
            self.latency.labels(model).observe(seconds)


async def test_the_p90_of_requests_since_the_last_sample() -> None:
    engine = Engine()
    engine.answered(4, 100)
    async with engine.running() as url:
        asked = EngineMetrics(url, NAME, 0.5)
        assert await asked.level() == 0, "what was before we came is over"
        engine.answered(0.05, 8)
        engine.answered(0.05, 8, "b")
        engine.answered(4, 1, "b")
        assert await asked.level() == 0.1 / 0.5
        engine.answered(0.05, 8)
        engine.answered(0.7, 2)
        assert await asked.level() == 2
        assert await asked.level() == 0, "no request came"
        engine.answered(100, 10)
        assert await asked.level() == 10, "beyond the last bucket"


async def test_a_gauge_is_the_latency_itself() -> None:
    engine = Engine()
    engine.waiting.set(0.75)
    async with engine.running() as url:
        assert await EngineMetrics(url, "engine_delay_seconds", 0.5).level() == 1.5


async def test_an_engine_that_is_away_or_says_nonsense_has_no_level() -> None:
    engine = Engine()
    async with engine.running() as url:
        assert await EngineMetrics(url + "/nowhere", NAME, 1).level() is None
        unknown = EngineMetrics(url, "other_metric", 1)
        assert await unknown.level() is None
        assert "has no metric other_metric" in unknown.trouble
        asked = EngineMetrics(url, NAME, 1)
        for body in (b"\xff\xfe", b"a b c d {", b"x" * (5 << 20)):
            engine.body = body
            assert await asked.level() is None
            assert asked.trouble
    assert await asked.level() is None, "it is gone"


def test_a_restarted_engine_is_believed_at_the_next_look() -> None:
    assert quantile({1.0: 2, math.inf: 4}, {1.0: 5, math.inf: 9}) == 0
    assert quantile({}, {}) == 0


def test_settings_that_cannot_work() -> None:
    with pytest.raises(UsageError, match="not a URL"):
        EngineMetrics("127.0.0.1:8000", NAME, 1)
    with pytest.raises(UsageError, match="above 0"):
        EngineMetrics("http://127.0.0.1:8000", NAME, 0)


async def test_a_password_in_the_url_of_an_engine_is_not_shown() -> None:
    """`status` named it to everybody who may ask."""
    asked = EngineMetrics("http://u:s3cret@127.0.0.1:1/metrics", NAME, 0.5)
    assert await asked.level() is None
    assert "127.0.0.1:1" in asked.trouble
    assert "s3cret" not in asked.trouble
    with pytest.raises(UsageError) as refused:
        EngineMetrics("ftp://u:s3cret@h/", NAME, 0.5)
    assert "s3cret" not in str(refused.value)

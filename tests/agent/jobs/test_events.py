"""A client that leaves in the middle of a stream is no error in the log."""

import asyncio
import logging
import random
from pathlib import Path

import pytest

from tests.agent.kit import agent, client, make_model, push


async def test_a_client_that_leaves_a_pull_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(tmp_path / "model", {"weights.bin": random.Random(7).randbytes(2_000_000)})
    push(tmp_path / "origin", model, "team/m:v1")
    origin = (tmp_path / "origin").as_uri()
    async with agent(tmp_path, origin=origin, origin_bytes_per_s=1_000_000) as app:
        async with (
            client(app) as session,
            session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer,
        ):
            await answer.content.readline()
            answer.close()
        await asyncio.sleep(0.6)  # two more events are written to nobody
    said = [
        r for r in caplog.records if r.name.startswith("aiohttp") and r.levelno >= logging.ERROR
    ]
    assert said == []

"""What was pushed through an agent is in the cluster already: nobody reads the origin for it."""

import io
import random
from pathlib import Path

from p2pcache.core.manifest import encode
from tests.agent.kit import agent, client, events, make_model, pull, push
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


async def test_the_first_pull_after_a_push_reads_from_the_pusher(tmp_path: Path) -> None:
    layout = push(tmp_path / "elsewhere", make_model(tmp_path / "model", FILES), "m")
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin) as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as pusher,
        agent(tmp_path, "b", tracker=f"http://{one.address}") as other,
        client(pusher) as session,
    ):
        async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
            (item,) = (await answer.json())["missing"]
        url = f"/v1/blobs/{layout.digest}/{item['blob']}"
        async with session.put(url, data=io.BytesIO(FILES["weights.bin"])) as answer:
            assert answer.status == 200
        async with session.post("/v1/push", json={"ref": "m", "digest": layout.digest}) as answer:
            assert (await events(answer))[-1]["event"] == "done"
        done = await pull(other, "m")
        assert (done["event"], done["bytes_origin"]) == ("done", 0)

"""The error of a pull when the origin doesn't hold the bytes that were pushed: it names object and fault."""

import random
from pathlib import Path

import pytest

from tests.agent.kit import agent, make_model, pull, push
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


def spoil(blob: Path, how: str) -> None:
    match how:
        case "gone":
            blob.unlink()
        case "short":
            blob.write_bytes(blob.read_bytes()[:1000])
        case "rotten":
            blob.write_bytes(bytes(blob.stat().st_size))


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("gone", "doesn't exist"),
        ("short", "has 1000 bytes"),
        ("rotten", "doesn't match its digest"),
    ],
)
async def test_the_message_names_the_object(
    tmp_path: Path, how: str, said: str, *, tracked: bool
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    push(origin, make_model(tmp_path / "model", FILES), "m")
    (blob,) = (origin / "p2pcache/v1/blobs").iterdir()
    spoil(blob, how)
    async with tracker(origin) as one:
        where = {"tracker": f"http://{one.address}"} if tracked else {}
        async with agent(tmp_path, "a", origin=origin.as_uri(), **where) as app:
            failed = await pull(app, "m")
    assert failed["code"] == 6
    assert blob.name in failed["message"]
    assert said in failed["message"]
    assert failed["message"].count("push it again") == 1
    assert failed["message"].endswith("push it again with --repair")

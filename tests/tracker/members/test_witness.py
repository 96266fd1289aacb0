"""The tracker itself reads a run that a member read wrong."""

import asyncio
import random
from pathlib import Path

import pytest

from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.format.source_record import BlobPlace, encode_record, make_record
from p2pcache.core.membership.outputs import ReadRun
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.members import witness as witnesses
from p2pcache.tracker.members.witness import Witness
from tests.agent.kit import make_model, push
from tests.tracker.kit import publish

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


async def read(url: str, *asked: ReadRun) -> list[tuple[int, WitnessReport]]:
    """What the tracker of this origin finds, in the order in which it was asked."""
    words: list[tuple[int, WitnessReport]] = []
    async with Tasks() as tasks:
        catalog = Catalog(url, tasks)
        one = Witness(catalog, lambda done, word: words.append((done.run, word)))
        await asyncio.gather(*(one.reread(each) for each in asked))
        catalog.close()
    return words


def damage(root: Path, how: str) -> None:
    (blob,) = (root / "p2pcache/v1/blobs").iterdir()
    match how:
        case "gone":
            blob.unlink()
        case "short":
            blob.write_bytes(blob.read_bytes()[:1000])
        case "rotten":
            blob.write_bytes(bytes(blob.stat().st_size))
        case "imported in place":
            (manifest,) = (root / "p2pcache/v1/manifests").iterdir()
            record = make_record({blob.name: [BlobPlace("lake", "m/weights.bin")]})
            (root / "p2pcache/v1/sources").mkdir()
            (root / "p2pcache/v1/sources" / manifest.name).write_bytes(encode_record(record))
            blob.unlink()
        case "an empty mount":
            (manifest,) = (root / "p2pcache/v1/manifests").iterdir()
            blob.unlink()
            manifest.unlink()


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("nothing", WitnessReport.RIGHT),
        ("gone", WitnessReport.WRONG),
        ("short", WitnessReport.WRONG),
        ("rotten", WitnessReport.WRONG),
        ("an empty mount", WitnessReport.NONE),
        ("imported in place", WitnessReport.NONE),
    ],
)
async def test_the_witness_proves_the_run(tmp_path: Path, how: str, word: WitnessReport) -> None:
    layout = push(tmp_path, make_model(tmp_path / "model", FILES), "m")
    damage(tmp_path, how)
    last = layout.run_count - 1
    assert await read(tmp_path.as_uri(), ReadRun(1, layout.digest, last)) == [(last, word)]


async def test_a_mount_that_went_after_the_manifest_was_read_is_the_trackers_own(
    tmp_path: Path,
) -> None:
    layout = push(tmp_path, make_model(tmp_path / "model", FILES), "m")
    words: list[WitnessReport] = []
    async with Tasks() as tasks:
        catalog = Catalog(tmp_path.as_uri(), tasks)
        await catalog.manifest(layout.digest)
        damage(tmp_path, "an empty mount")
        one = Witness(catalog, lambda _, word: words.append(word))
        await one.reread(ReadRun(1, layout.digest, 0))
        catalog.close()
    assert words == [WitnessReport.NONE]


async def test_the_witness_gives_no_verdict_on_a_run_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    digest, _ = publish(tmp_path / "origin")
    url = (tmp_path / "origin").as_uri()
    made_up = ReadRun(1, "ab" * 32, 0)
    beyond = ReadRun(1, digest, 10**6)
    assert await read(url, made_up, beyond) == [
        (0, WitnessReport.NONE),
        (10**6, WitnessReport.NONE),
    ]
    assert await read("", ReadRun(1, digest, 0)) == [(0, WitnessReport.NONE)]


async def test_few_wait_and_each_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = push(tmp_path, make_model(tmp_path / "model", FILES), "m")
    monkeypatch.setattr(witnesses, "WAITING", 2)
    asked = [ReadRun(1, layout.digest, run) for run in range(4)]
    words = await read(tmp_path.as_uri(), *asked)
    assert sorted(words) == [
        (0, WitnessReport.RIGHT), (1, WitnessReport.RIGHT), (2, WitnessReport.NONE), (3, WitnessReport.NONE)
    ]  # fmt: skip

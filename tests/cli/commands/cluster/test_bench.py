"""`p2pcache bench` and `loadtest.bench`: the same parts, measured for an instant."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.bench import __main__ as tool
from p2pcache.cli.main import cli
from p2pcache.errors import NotFound, UsageError
from p2pcache.io.host import bench, host_facts
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.base import ObjectInfo
from tests.agent.kit import make_model, push

SIZE = 3_000_000


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SPAN_S", 0.1)
    monkeypatch.setattr(host_facts, "DISK_BYTES", 1 << 20)


@pytest.fixture
def origin(tmp_path: Path) -> str:
    files = {"weights.bin": random.Random(5).randbytes(SIZE), "empty": b""}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return (tmp_path / "origin").as_uri()


def test_every_part_has_a_rate(tmp_path: Path, origin: str) -> None:
    args = ["bench", "--cache-dir", str(tmp_path), "--origin", origin]
    told = CliRunner().invoke(cli, [*args, "--json"])
    assert told.exit_code == 0, told.output
    figures = json.loads(told.stdout)
    assert figures.pop("schema") == 1
    assert list(figures) == ["disk", "hash", "loopback", "origin"]
    assert figures["hash"]["one_thread"] > 1e8
    assert figures["loopback"]["tcp"] > 1e7
    assert figures["disk"]["write"] > 0
    assert figures["origin"]["many"] > 1e6
    assert 0 < figures["origin"]["first_byte_s"] < 5
    said = CliRunner().invoke(cli, args)
    assert [line.split()[0] for line in said.stdout.splitlines()] == list(figures)


def test_storage_is_read_by_a_large_blob_among_many_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3,000 tokenizer files the first 64 were looked at, and a read of 3 kB was the storage's speed."""
    monkeypatch.setattr(bench, "RANGE_BYTES", SIZE)
    files = {f"{n}.json": str(n).encode() for n in range(300)}
    push(
        tmp_path / "origin",
        make_model(tmp_path / "model", {**files, "w": bytes(SIZE)}),
        "team/m:v1",
    )
    opened = open_origin((tmp_path / "origin").as_uri())
    found = bench._large_one(opened)
    assert found is not None
    assert found.size == SIZE
    opened.close()


class Storage:
    """Objects of these sizes; it counts those that it lists, and keeps which ranges were read."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.listed = 0
        self.ranges: set[tuple[str, int]] = set()

    def list(self, _: str) -> Iterator[ObjectInfo]:
        for size in self.sizes:
            self.listed += 1
            yield ObjectInfo(f"{self.listed}", size, "")

    def open(self, key: str, start: int, _: int) -> io.BytesIO:
        self.ranges.add((key, start))
        return io.BytesIO()


@pytest.mark.parametrize("small", [0, 3_000])
def test_readers_of_a_storage_read_ranges_of_their_own(small: int) -> None:
    """Beside a blob of 4 GiB one of 16 MiB was read: the same bytes again and again, which storage has at hand."""
    storage: Any = Storage([4] * small + [bench.RANGE_BYTES, 4 << 30] + [4] * bench.OBJECTS)
    found = bench._large_one(storage)
    assert found is not None
    assert storage.listed == max(small + 2, bench.PAGE), "no more than needed"
    read = bench._reader(storage, found.key, found.size)
    for number in range(bench.READERS):
        read(number, bench.RANGE_BYTES)
    assert len(storage.ranges) == bench.READERS


def test_a_part_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "no").write_text("a file")
    args = ["bench", "--cache-dir", str(tmp_path / "no" / "dir"), "--json"]
    told = CliRunner().invoke(
        cli, [*args, "--origin", (tmp_path / "none").as_uri()], standalone_mode=False
    )
    figures = json.loads(told.stdout)
    assert told.return_value == 2  # of the disk, which comes first
    assert "error" in figures["disk"]
    assert "no model lies in" in figures["origin"]["error"]
    assert figures["hash"]["one_thread"] > 0  # the others are measured all the same


def test_a_cache_that_the_agent_will_make(tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["bench", "--cache-dir", str(tmp_path / "no" / "dir"), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["disk"]["dir"] == str(tmp_path)


def test_storages_without_blobs(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        bench.origin_speed(tmp_path.as_uri())
    with pytest.raises(UsageError):
        bench.origin_speed("gopher://x")


def test_the_load_test_measures_the_same_parts(
    tmp_path: Path, origin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.json"
    assert tool.main(["--origin", origin, "--dir", str(tmp_path), "--json", str(out)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "disk", "hash", "loopback", "origin", "load",
    ]  # fmt: skip
    assert json.loads(out.read_text())["origin"]["many"] > 0

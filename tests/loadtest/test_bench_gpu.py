"""The GPU benchmark without a GPU: the same jobs on a device whose copies come as late as they may."""

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.bench_gpu import __main__ as bench_gpu
from loadtest.bench_gpu import ends
from loadtest.bench_gpu.__main__ import Bench, measure, show
from loadtest.bench_gpu.ends import Host
from loadtest.bench_loader import __main__ as bench_loader
from p2pcache.loader import stream
from tests.loader.memory.fake_device import FakeAsyncBackend


class FakeDevice(Host):
    """Host memory; what is pinned is remembered."""

    word = "cuda"

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        del self.registered[address]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name, value in {"HIDDEN": 64, "INNER": 96, "KEYS": 16, "WORDS": 500}.items():
        monkeypatch.setattr(bench_loader, name, value)
    bench_loader.make_llama(tmp_path, 2, layers=2)
    monkeypatch.setattr(stream, "CudaBackend", lambda _device, _streams: FakeAsyncBackend())
    device = FakeDevice()

    def run(job: dict[str, Any]) -> dict[str, Any]:
        found = ends.do(job, device)
        assert not device.registered
        return found

    return Bench(tmp_path, "cuda:0", 2, run)


def test_warm_and_cold(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    rows = bench.page_cache(["p2pcache"]) + bench.cold_disk(["p2pcache"])
    assert [(row["section"], row["name"]) for row in rows] == [
        ("page cache", "ceiling, 1 stream"),
        ("page cache", "ceiling, 2 streams"),
        ("page cache", "copy, not pinned"),
        ("page cache", "p2pcache"),
        ("cold disk", "read only"),
        ("cold disk", "p2pcache"),
    ]
    assert not bench.wrong
    assert all(len(row["seconds"]) == 2 for row in rows)
    assert rows[3]["of_ceiling"] > 0
    assert "of_ceiling" not in rows[4]
    show(rows, "head")
    assert capsys.readouterr().out.count("\n") == len(rows) + 2


def test_the_rate_of_a_small_model_is_not_rounded_to_nothing(bench: Bench) -> None:
    bench.size = 1_234_567
    assert bench._row("swarm", "pull alone", [1.0])["gb_per_s"] == 0.00123


def test_every_ring_and_the_arena(bench: Bench) -> None:
    rows = bench.rings()
    assert len(rows) == 2 + 4 + 3 * 3 * 2  # ceilings, readers, rings
    assert not bench.wrong
    assert [row["name"] for row in bench.arena(1 << 20)] == [
        "touch, 1 MiB", "register, 1 MiB", "copy, 1 MiB", "unregister, 1 MiB"
    ]  # fmt: skip


def test_wrong_bytes_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ends.LOADERS, "liar", lambda _job, _device: lambda: {"a": torch.zeros(3)})
    bench.cold_disk(["liar"])
    assert bench.wrong == ["cold disk, liar"]


def test_a_rival_that_fails_costs_its_own_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_job: dict[str, Any], _device: object) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setitem(ends.LOADERS, "runai", broken)
    rows = bench.cold_disk(["runai", "p2pcache"])
    assert [row["name"] for row in rows] == ["read only", "p2pcache"]


@pytest.mark.slow
@pytest.mark.functional
def test_the_swarm_on_loopback(bench: Bench) -> None:
    pull, copy, load = bench.swarm()
    assert not bench.wrong
    assert pull["name"] == "pull alone"
    assert copy["gb_per_s"] > 0
    assert load["times_larger_alone"] > 0


def test_sections_one_by_one_and_kept_after_each(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    args = argparse.Namespace(only=["arena", "rings"], arena_mib=1, json=file)
    rows = measure(bench, args, "head")
    assert {row["section"] for row in rows} == {"arena", "ring"}
    assert json.loads(file.read_text()) == {"head": "head", "rows": rows}
    args.only = ["arena", "page-cache"]
    bench.page_cache = lambda _: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(ZeroDivisionError):
        measure(bench, args, "head")
    assert len(json.loads(file.read_text())["rows"]) == 4  # the arena's


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_gpu"])
    assert bench_gpu.main() == 2
    assert "no GPU here" in capsys.readouterr().out


def test_carried_wheels_are_found_also_what_they_would_have_installed_elsewhere(
    tmp_path: Path,
) -> None:
    """Without a registry run.sh unpacks them, and pip's part of it isn't done: some keep their code in `.data`."""
    root = Path(__file__).resolve().parents[2]
    for name, place in (("plain", ""), ("moved", "moved-1.data/purelib/")):
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{place}{name}_wheel.py", "")
    python = (
        tmp_path / "python"
    )  # unpacks, and instead of tests and benchmark looks for the wheels' code
    python.write_text(
        f'#!/bin/sh\n[ "$2" = zipfile ] && exec {sys.executable} "$@"\n'
        f'exec {sys.executable} -c "import plain_wheel, moved_wheel"\n'
    )
    python.chmod(0o755)
    environ = os.environ | {
        "PY": str(python), "GPU_OFFLINE": "1", "WHEELS": str(tmp_path), "JSON": str(tmp_path / "out.json"),
    }  # fmt: skip
    script = str(root / "loadtest/bench_gpu/run.sh")
    done = subprocess.run(
        ["sh", script], cwd=root, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""The loopback benchmarks, with models too small to say anything: that they run, and what they count."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.loopback.__main__ import ASKED, Turn, report
from loadtest.loopback.runs import Run


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    figures = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "-m", *arguments, "--dir", str(tmp_path), "--json", str(figures)],
        check=True, timeout=120, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(figures.read_text())
    assert [p.name for p in tmp_path.iterdir()] == ["figures.json"]
    return found


@pytest.mark.slow
def test_one_to_one(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "loadtest.loopback.__main__",
        "--through",
        "peers",
        "--size-mib",
        "8",
        "--pairs",
        "1",
    )
    assert found["bytes"] > 8 << 20
    assert all(found[name]["ratio"] > 0 for name in ASKED)


@pytest.mark.slow
def test_up_and_down(tmp_path: Path) -> None:
    found = run(tmp_path, "loadtest.updown", "--size-mib", "8", "--turns", "1")
    assert found["ratio"] > 0
    assert 0 < found["cpu_busy"] <= 1


def test_ratios_are_of_pairs_and_python_is_what_blake3_leaves() -> None:
    def turn(raw_s: float, ours_s: float) -> Turn:
        ours = Run(ours_s, 0.2, 0.8, 0.4)
        bare = Run(ours_s / 2, 0.1, 0.4, 0.3)
        return Turn(Run(raw_s, 0.1, 0.2, 0.0), ours, ours, bare, Run(1.0, 0.0, 1.0, 0.0))

    found = report([turn(0.4, 1.0), turn(0.5, 1.0), turn(3.0, 3.0)], 10**9, 0.2)
    assert found["fresh"]["ratio"] == 0.5
    assert found["fresh"]["cpu_s_per_gb"] == 1.0
    assert found["again"]["python_share"] == pytest.approx(0.2)
    assert found["raw"]["gb_per_s"] == 2.0
    assert found["again"]["of_bare"] == 0.5
    assert found["bare"]["ratio"] == 1.0

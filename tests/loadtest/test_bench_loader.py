"""The loader's benchmark: what its figures are made of, and that every contestant at hand brings the right bytes."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file

from loadtest.bench_loader import __main__ as bench_loader
from loadtest.bench_loader import experts
from loadtest.bench_loader.__main__ import MiB, Run, make_llama, measure, run, table


def test_ratios_are_taken_within_a_turn() -> None:
    runs = {
        "floor": [Run(1.0, 0.2, 0), Run(2.0, 0.2, 0), Run(1.0, 0.2, 0)],
        "x": [Run(2.0, 1.0, 7, 0.002), Run(2.0, 3.0, 9, 0.009), Run(1.25, 2.0, 8, 0.003)],
    }
    row = table(runs, 2_000_000_000)[1]
    assert row == {
        "loader": "x", "gb_per_s": 1.0, "of_first": 0.8, "of_first_best": 1.0, "of_first_worst": 0.5,
        "cpu_s_per_gb": 1.0, "anon_mib": 9, "first_tensor_ms": 3.0,
    }  # fmt: skip


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"HIDDEN": 64, "INNER": 96, "KEYS": 16, "WORDS": 500, "HEAD": 16}.items():
        monkeypatch.setattr(bench_loader, name, value)
    make_llama(tmp_path, 3, layers=2)
    return tmp_path


def test_the_model_is_a_llama(small: Path) -> None:
    shards = sorted(small.glob("*.safetensors"))
    assert len(shards) == 3
    tensors = {name: t for shard in shards for name, t in load_file(shard).items()}
    assert len(tensors) == 2 * 9 + 3
    assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (64, 96)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "names",
    [
        ["floor", "p2pcache-into"],
        ["safetensors-load", "p2pcache-load"],
    ],
)
def test_contestants_bring_the_right_bytes(small: Path, names: list[str]) -> None:
    runs, wrong = measure(small, names, 1, 64 << 20)
    assert not wrong
    assert all(len(found) == 1 for found in runs.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_anonymous_memory_stays_near_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the limit and 64 MiB more, of a model that is larger than both."""
    monkeypatch.setattr(bench_loader, "WORDS", 6000)
    limit = 24 * MiB
    assert make_llama(tmp_path, 2, layers=1) > 1.4 * (limit + 64 * MiB)
    found, _ = run("p2pcache-into", tmp_path, limit, check=False)
    assert found.anon_mib <= 24 + 64


def test_the_layout_of_experts_comes_whole() -> None:
    tensors = experts.layout(40)
    assert len(tensors) == 80
    assert all(one.end == two.start for one, two in pairwise(tensors) if one.path == two.path)
    _, came, calls = experts.load(tensors, 0.0)
    assert came == 80
    assert 80 < calls < 800

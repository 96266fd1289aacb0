"""Our plugins in the source of the engines that pyproject's users run: vLLM 0.33.0, SGLang 0.5.23.

The engines' plugin loading, registries, load configuration and default loaders are real; the rest of
them is shells (engine_shells.py), since it needs CUDA. `make engines` brings the source.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from p2pcache.agent.embedded import run_embedded
from tests.agent.kit import push
from tests.loader.integrations.engine_shells import ENGINES
from tests.loader.loader_kit import Spec, write, write_index
from tests.loader.source.agent_kit import agent_settings

ROOT = Path(__file__).resolve().parents[3]
CASES = {
    "vllm": ("registered", "extra_config", "directory", "streamed", "streamed_again", "reloaded", "tied", "missing",
             "filters", "encoder_only", "secondary", "not_ours", "another_version", "public_base", "adapters", "draft"),
    "sglang": ("hooked", "directory", "streamed", "streamed_again", "updated", "draft", "not_ours"),
}  # fmt: skip


def make_model(folder: Path, seed: int) -> None:
    """Two shards with layers, experts, an index; 6 MB."""
    folder.mkdir()
    weight_map: dict[str, str] = {}
    for shard in range(2):
        layer = f"model.layers.{shard}"
        specs = [Spec(f"{layer}.attn.q_proj.weight", "BF16", (512, 512))]
        for expert in range(2):
            specs.append(Spec(f"{layer}.mlp.experts.{expert}.up.weight", "BF16", (512, 512)))
            specs.append(Spec(f"{layer}.mlp.experts.{expert}.up.weight_scale", "F32", (1,)))
        specs.append(Spec(f"model.mtp.layers.{shard}.w", "BF16", (64, 64)))
        if shard:
            specs.append(Spec("model.norm.weight", "BF16", (512,)))
            specs.append(Spec("lm_head.weight", "BF16", (512, 64)))
        name = f"model-{shard}.safetensors"
        write(folder / name, specs, seed=10 * shard + seed)
        weight_map |= dict.fromkeys((spec.name for spec in specs), name)
    write_index(folder, weight_map)
    (folder / "config.json").write_text(f'{{"model_type": "tiny", "seed": {seed}}}')


@contextmanager
def places(root: Path) -> Iterator[str]:
    """Models, their directories without weights, and an agent that has yet to fetch them."""
    for number in range(6):
        whole, small = root / f"whole-{number}", root / f"small-{number}"
        make_model(whole, 1000 * number)
        small.mkdir()
        for name in ("config.json", "model.safetensors.index.json"):
            (small / name).write_bytes((whole / name).read_bytes())
        push(root / "origin", whole, f"team/moe-{number}:v1")
    adapter = root / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}'
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"w")
    push(root / "origin", adapter, "team/adapter:v1")
    with run_embedded(agent_settings(root, root / "origin")) as socket:
        yield f"unix://{socket}"


def run(engine: str, root: Path) -> dict[str, str]:
    if not list(ENGINES.glob(f"{engine}-*.done")):
        pytest.skip(f"no source of {engine} here: `make engines` brings it")
    if "p2pcache" not in {e.name for e in entry_points(group="vllm.general_plugins")}:
        pytest.skip("p2pcache is installed without its entry points: pip install -e . again")
    with places(root) as agent:
        done = subprocess.run(
            [sys.executable, "-m", "tests.loader.integrations.engine_contracts", engine, str(root), agent],
            cwd=ROOT, capture_output=True, text=True, timeout=80,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def vllm_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run("vllm", tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def sglang_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run("sglang", tmp_path_factory.mktemp("sglang"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["vllm"])
def test_vllm(vllm_results: dict[str, str], case: str) -> None:
    assert vllm_results.keys() == set(CASES["vllm"])
    assert not vllm_results[case], vllm_results[case]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["sglang"])
def test_sglang(sglang_results: dict[str, str], case: str) -> None:
    assert sglang_results.keys() == set(CASES["sglang"])
    assert not sglang_results[case], sglang_results[case]


def test_entry_points() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert told == {
        "vllm.general_plugins": {"p2pcache": "p2pcache.loader.integrations.vllm:register"},
        "sglang.srt.plugins": {"p2pcache": "p2pcache.loader.integrations.sglang:register"},
    }

"""transformers on a CPU, with a generated tiny Llama: the same logits as from its own from_pretrained."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from unittest.mock import MagicMock

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

import p2pcache
from p2pcache.agent.embedded import run_embedded
from p2pcache.errors import NotFound, TimedOut, UsageError
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.integrations import transformers as integration
from tests.agent.kit import push
from tests.loader.source.agent_kit import agent_settings

REF = "team/tiny:v1"
PROMPT = torch.arange(12).reshape(1, 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with 3 shards and 11 MB, and an origin that has it."""
    root = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=704, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, dtype="bfloat16",
    )  # fmt: skip
    made = LlamaForCausalLM(config).to(torch.bfloat16)
    made.generation_config.top_k = 3
    made.generation_config.do_sample = True
    made.save_pretrained(root / "model", max_shard_size="3MB")
    (root / "model" / "original").mkdir()
    (root / "model" / "original" / "params.json").write_text("{}")
    push(root / "origin", root / "model", REF)
    return root / "model", root / "origin"


@pytest.fixture
def agent(tmp_path: Path, model: tuple[Path, Path]) -> Iterator[str]:
    with run_embedded(agent_settings(tmp_path, model[1])) as socket:
        yield f"unix://{socket}"


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(PROMPT).logits
    return found


def same(ours: Any, theirs: Any) -> None:
    assert torch.equal(logits(ours), logits(theirs))
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.slow
def test_logits_while_the_model_arrives(tmp_path: Path, model: tuple[Path, Path]) -> None:
    seen: list[int] = []
    seen_by: list[str] = []

    class Watching(LlamaForCausalLM):  # type: ignore[misc]
        @classmethod
        def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
            client = AgentClient(seen_by[0])
            seen.append(int(client.status()["bytes"]["origin"]))
            made = super().from_pretrained(*args, **kwargs)
            seen.append(int(client.status()["bytes"]["origin"]))
            return made

    slow = agent_settings(tmp_path, model[1], origin_bytes_per_s=800_000)  # 10 s for all
    with run_embedded(slow) as socket:
        seen_by.append(f"unix://{socket}")
        ours = p2pcache.from_pretrained(REF, Watching, dtype="auto", agent=seen_by[0])
    total = sum(path.stat().st_size for path in model[0].glob("*.safetensors"))
    assert seen[0] < 0.5 * total  # it began with less than half of the bytes here,
    assert seen[1] > 0.8 * total  # and the rest came meanwhile
    theirs = AutoModelForCausalLM.from_pretrained(model[0], dtype="auto")
    assert ours.dtype == torch.bfloat16
    assert (ours.generation_config.top_k, ours.training) == (3, False)
    same(ours, theirs)


def test_a_directory_needs_no_agent(model: tuple[Path, Path]) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(model[0], dtype=torch.float32)
    same(p2pcache.from_pretrained(model[0], LlamaForCausalLM, dtype=torch.float32), theirs)


def test_a_directory_that_transformers_itself_can_not_read(
    model: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its index has no metadata, or its shards have other names and no index."""
    theirs = AutoModelForCausalLM.from_pretrained(model[0], dtype="auto")
    whole = shutil.copytree(model[0], tmp_path / "whole")
    index = whole / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": json.loads(index.read_text())["weight_map"]}))
    with pytest.raises(KeyError):
        AutoModelForCausalLM.from_pretrained(whole)
    same(p2pcache.from_pretrained(whole, AutoModelForCausalLM, dtype="auto"), theirs)
    index.unlink()
    same(p2pcache.from_pretrained(whole, AutoModelForCausalLM, dtype="auto"), theirs)


@pytest.mark.slow
def test_one_model_of_a_pipeline(model: tuple[Path, Path], tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline"
    how: dict[str, Any] = {"subfolder": "text_encoder", "dtype": "auto"}
    shutil.copytree(model[0], pipeline / "text_encoder")
    (pipeline / "model_index.json").write_text("{}")
    push(tmp_path / "origin", pipeline, "team/pipeline:v1")
    theirs = LlamaForCausalLM.from_pretrained(pipeline, **how)
    same(p2pcache.from_pretrained(pipeline, AutoModelForCausalLM, **how), theirs)
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        agent = f"unix://{socket}"
        for _ in ("it arrives", "it is here"):
            ours = p2pcache.from_pretrained(
                "team/pipeline:v1", AutoModelForCausalLM, agent=agent, **how
            )
            same(ours, theirs)
            p2pcache.snapshot("team/pipeline:v1", agent=agent)


def test_memory_of_its_own(model: tuple[Path, Path]) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(model[0], dtype="auto")
    for memory in ("private", "mapped"):
        same(
            p2pcache.from_pretrained(model[0], AutoModelForCausalLM, dtype="auto", memory=memory),
            theirs,
        )


def test_loading_info_and_the_dtype_of_the_weights(model: tuple[Path, Path]) -> None:
    config = LlamaConfig.from_pretrained(model[0])
    config.dtype = None
    made, info = p2pcache.from_pretrained(
        model[0], AutoModelForCausalLM, config=config, dtype="auto", output_loading_info=True
    )
    assert made.dtype == torch.bfloat16
    assert made.generation_config.top_k == 3
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_remote_code_is_refused(model: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=r"snapshot\(ref\)"):
        p2pcache.from_pretrained(model[0], AutoModelForCausalLM, trust_remote_code=True)


@pytest.mark.parametrize("where", [REF, None])
def test_a_revision_is_refused(model: tuple[Path, Path], where: str | None) -> None:
    with pytest.raises(UsageError, match="no revision here; the ref names the version"):
        p2pcache.from_pretrained(where or model[0], AutoModelForCausalLM, revision="v9")
    for default in (None, "main"):
        p2pcache.from_pretrained(model[0], AutoModelForCausalLM, revision=default)


def test_a_variant_is_refused_where_transformers_would_ignore_it(
    model: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"no variant here; give p2pcache\.snapshot\(ref\)"):
        p2pcache.from_pretrained(REF, AutoModelForCausalLM, variant="fp16")
    both = tmp_path / "both"
    made = AutoModelForCausalLM.from_pretrained(model[0])
    made.save_pretrained(both)
    with torch.no_grad():
        made.lm_head.weight.fill_(7.0)
    made.save_pretrained(both, variant="fp16")
    found = p2pcache.from_pretrained(both, AutoModelForCausalLM, variant="fp16")
    assert torch.all(found.lm_head.weight == 7.0)
    with pytest.raises(UsageError, match="no variant here"):
        p2pcache.from_pretrained(both, AutoModelForCausalLM, variant="fp16", memory="private")


@pytest.mark.slow
def test_snapshots(agent: str, model: tuple[Path, Path]) -> None:
    small = p2pcache.snapshot(REF, exclude=["*.safetensors"], agent=agent)
    assert {p.name for p in small.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors.index.json", "original",
    }  # fmt: skip
    assert p2pcache.snapshot(REF, exclude="*.safetensors", agent=agent) == small
    alone = p2pcache.snapshot(REF, include="config.json", agent=agent)
    assert [p.name for p in alone.iterdir()] == ["config.json"]
    with pytest.raises(NotFound):
        p2pcache.snapshot("team/none:v1", agent=agent)
    whole = p2pcache.snapshot(REF, agent=agent)
    for path in model[0].glob("*.safetensors"):
        assert (whole / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_accelerate_by_a_local_snapshot(agent: str, model: tuple[Path, Path]) -> None:
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    whole = p2pcache.snapshot(REF, agent=agent)
    with init_empty_weights():
        config = LlamaConfig.from_pretrained(whole)
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ours = load_checkpoint_and_dispatch(empty, whole, device_map={"": "cpu"}).eval()
    assert torch.equal(
        logits(ours), logits(AutoModelForCausalLM.from_pretrained(model[0], dtype="auto"))
    )


def test_importing_the_plugins_imports_no_framework() -> None:
    code = (
        "import sys, p2pcache, p2pcache.loader.integrations.vllm, p2pcache.loader.integrations.sglang;"
        "p2pcache.snapshot; p2pcache.from_pretrained;"
        "assert not {'torch', 'transformers', 'vllm', 'sglang', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class Failing:
    """An open model that still arrives, one of whose tensors can't be had."""

    directory = None

    def __init__(self, inner: Any, lost: str) -> None:
        self.inner, self.lost = inner, lost

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()

    def keys(self) -> list[str]:
        return list(self.inner.keys())

    def get_slice(self, name: str) -> Any:
        if name != self.lost:
            return self.inner.get_slice(name)
        part = MagicMock()
        part.__getitem__.side_effect = TimedOut(f"{name} didn't come")
        part.get_shape, part.get_dtype = (lambda: [1]), (lambda: "BF16")
        return part


@pytest.mark.parametrize("lost", ["norm.weight", "experts.1.w1.weight", "experts.0.w2.weight"])
def test_a_tensor_that_does_not_arrive_is_an_error(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers logs what goes wrong while it converts tensors, and goes on; reading isn't part of that."""
    config = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_local_experts=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    with p2pcache.safe_open(tmp_path) as found:
        (name, *_) = [n for n in found.keys() if n.endswith(lost)]  # noqa: SIM118

    def opened(*args: Any, **kwargs: Any) -> Failing:
        return Failing(p2pcache.safe_open(*args, **kwargs), name)

    whole = p2pcache.from_pretrained(tmp_path, AutoModelForCausalLM)
    assert torch.equal(logits(whole), logits(AutoModelForCausalLM.from_pretrained(tmp_path)))
    monkeypatch.setattr(integration, "safe_open", opened)
    with pytest.raises(TimedOut, match="didn't come"):
        p2pcache.from_pretrained(tmp_path, AutoModelForCausalLM)


@pytest.mark.parametrize(
    ("given", "device"),
    [("cuda", "cuda"), (1, "cuda:1"), ({"": 0}, "cuda:0"), (torch.device("cuda", 2), "cuda:2"),
     ("auto", None), (None, None), ("cpu", None), ({"": "cpu"}, None), ({"lm_head": 0, "model": 1}, None),
     (True, None)],
)  # fmt: skip
def test_a_device_map_of_one_gpu(
    monkeypatch: pytest.MonkeyPatch, given: Any, device: str | None
) -> None:
    monkeypatch.setattr(integration, "cuda_device", str)  # as if there were some
    assert integration._one_gpu(given) == device


def test_a_device_map_of_a_gpu_that_is_not_here() -> None:
    if not torch.cuda.is_available():
        assert integration._one_gpu("cuda") is None

"""Settings of engines, and where their weights are."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from p2pcache.errors import Unreachable, UsageError
from p2pcache.ids import Ref
from p2pcache.loader.api import DEVICE_LIMIT, HOST_LIMIT
from p2pcache.loader.integrations import weights
from p2pcache.loader.integrations.gather import Groups
from p2pcache.loader.integrations.weights import (
    HOST,
    EngineSettings,
    Place,
    find_weights,
    named_ref,
    place_for,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("page", ["vllm", "sglang"])
def test_the_pages_name_the_limit_that_holds(page: str) -> None:
    lines = (ROOT / "docs" / "engines" / f"{page}.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("|") and "memory_limit" in line.lower()]
    assert EngineSettings().memory_limit is None  # the loader's own
    told = row.split("|")[2].translate(str.maketrans("", "", '`"')).strip()
    assert told == f"{HOST_LIMIT}; {DEVICE_LIMIT} to a GPU"


@pytest.mark.parametrize(
    "told",
    [{"rev": "x"}, {"ref": 3}, {"ref": "../x"}, {"memory_limit": 1.5}, {"memory_limit": "lots"},
     {"timeout_s": -1}, {"timeout_s": True}, {"agent": None}, {"device": "cuda:1"}, {"device": 0}],
)  # fmt: skip
def test_wrong_settings_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        EngineSettings.parse(told, "here")


def test_weights_come_from_the_directory_if_it_has_safetensors(tmp_path: Path) -> None:
    # The engine itself loads a model by its name in a hub.
    assert find_weights("org/model", EngineSettings("a/b:c")) is None
    assert find_weights(str(tmp_path), EngineSettings()) is None  # no weights, no ref
    (tmp_path / "model.safetensors").touch()
    assert find_weights(str(tmp_path), EngineSettings("a/b:c")) == tmp_path


def test_an_adapter_is_not_filled_with_the_models_weights(tmp_path: Path) -> None:
    """Engines ask the same loader for LoRA adapters and drafts; these may be .bin files."""
    settings = EngineSettings("a/b:c", agent=f"unix://{tmp_path}/nobody.sock")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert find_weights(str(tmp_path), settings) is None
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    assert find_weights(str(tmp_path), settings) is None
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(Unreachable):  # now it is a model without weights: the ref is asked
        find_weights(str(tmp_path), settings)


@pytest.mark.parametrize(
    ("text", "ref"),
    [("team/llama:step-1200", Ref("team", "llama", "step-1200")),
     ("p2pcache://Team/Llama", Ref("team", "llama", "latest")),
     ("org/draft", None), ("s3://bucket/m", None), ("/models/a:b", None), ("./a:b", None), ("", None)],
)  # fmt: skip
def test_what_an_engine_is_told_is_a_ref_only_where_it_is_no_name_in_a_hub(
    text: str, ref: Ref | None
) -> None:
    assert named_ref(text) == ref


def test_a_bad_address_is_no_path() -> None:
    with pytest.raises(UsageError):
        find_weights("p2pcache://a/b/c", EngineSettings())


def test_weights_go_to_a_gpu_where_the_operator_wants_them_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wish = EngineSettings(device="cuda")
    assert place_for("a/b:c", EngineSettings()) == HOST
    if not torch.cuda.is_available():
        with caplog.at_level(logging.WARNING, "p2pcache"):
            assert place_for("a/b:c", wish) == HOST
        assert "weights go through host memory: device 'cuda' can't be used here" in caplog.text
    monkeypatch.setattr(weights, "cuda_device", str)  # as if there were one
    assert place_for("a/b:c", wish) == place_for(tmp_path, wish) == Place("cuda")
    (tmp_path / "consolidated.safetensors").touch()
    assert place_for(tmp_path, wish) == HOST


def test_workers_load_together_if_all_can(monkeypatch: pytest.MonkeyPatch) -> None:
    wish, groups, others = EngineSettings(device="cuda"), Groups("gpus", "hosts"), [True]

    def told(found: list[bool], mine: bool, group: object) -> None:
        assert group == "hosts"
        found[:] = [mine, *others]

    dist = torch.distributed
    monkeypatch.setattr(weights, "cuda_device", str)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(dist, "all_gather_object", told)
    assert place_for("a/b:c", wish, lambda: groups) == Place("cuda", groups)
    others[:] = [False]
    assert place_for("a/b:c", wish, lambda: groups) == HOST
    assert place_for("a/b:c", wish) == HOST  # experts of its own
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1 if group else 2)
    assert place_for("a/b:c", wish, lambda: groups) == HOST  # a stage of a pipeline

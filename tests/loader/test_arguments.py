"""What people write who know safetensors and torch: it works, or the message says what would."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import InvalidHeader, NotFound, Unreachable, UsageError
from p2pcache.loader.backend import cuda_device

SHAPE = (12, 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(
        {"w": torch.arange(120.0).reshape(SHAPE), "b": torch.ones(3)}, tmp_path / "m.safetensors"
    )
    return tmp_path


@pytest.mark.parametrize(
    "index",
    [np.int64(5), np.int32(-1), torch.tensor(3), slice(None, None, 2), slice(1, 9, 3),
     (slice(None), slice(2, 9, 4)), (slice(1, 7), slice(None, None, 5)), (3, slice(0, 8, 2)),
     (slice(np.int64(1), np.int64(3)), 2), slice(5, 2), slice(-3, None), (..., 1)],
)  # fmt: skip
def test_slices_are_those_of_safetensors(folder: Path, index: Any) -> None:
    with (
        p2pcache.safe_open(folder) as ours,
        safetensors.safe_open(folder / "m.safetensors", "pt") as theirs,
    ):
        # theirs doesn't take torch's numbers
        like = int(index) if isinstance(index, torch.Tensor) else index
        assert torch.equal(ours.get_slice("w")[index], theirs.get_slice("w")[like])
        assert ours.offset_keys() == theirs.offset_keys()


def test_one_axis_needs_no_list(folder: Path) -> None:
    axis = p2pcache.ParallelAxis("tensor", 1, 4, names="w")
    found = p2pcache.load(folder, parallel=axis)["w"]
    assert torch.equal(found, torch.arange(120.0).reshape(SHAPE)[3:6])


def test_a_device_that_is_a_number_is_a_gpu(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"cuda:99"):
        p2pcache.load(folder, device=99)


def test_a_gpu_beyond_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cuda_device("cuda:1").index == 1
    with pytest.raises(UsageError, match="2 GPUs"):
        cuda_device("cuda:2")


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("inside", [True, False])
def test_a_module_of_inference_mode_is_filled(folder: Path, mode: Any, *, inside: bool) -> None:
    with mode():
        target = {"w": torch.zeros(SHAPE, dtype=torch.float16), "b": torch.zeros(3)}
        if inside:
            p2pcache.load_into(target, folder)
    if not inside:
        p2pcache.load_into(target, folder)
    assert torch.equal(target["w"].float(), torch.arange(120.0).reshape(SHAPE))


def test_both_sides_of_a_mismatch_are_named(folder: Path) -> None:
    """A prefix that is missing shows only so."""
    with pytest.raises(
        UsageError, match=r"model lacks .*model\.w.* target lacks .*\(b, w\)|\(w, b\)"
    ):
        p2pcache.load_into({"model.w": torch.zeros(SHAPE), "model.b": torch.zeros(3)}, folder)


@pytest.mark.parametrize(
    ("name", "kind"), [("modells/llama", Unreachable), ("meta-llama/Llama-3.1-8B", UsageError)]
)
def test_a_slip_in_a_directory_s_name(tmp_path: Path, name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=re.escape(f"nor is there a directory '{name}'")):
        p2pcache.load(name, agent=f"unix://{tmp_path}/none.sock")


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "m.safetensors").write_text(text)
    with pytest.raises(InvalidHeader, match="git lfs pull"):
        p2pcache.load(tmp_path)


def test_a_model_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotFound, match="snapshot"):
        p2pcache.load(tmp_path)

"""Arguments as users of safetensors and torch write them: they work, or the message says what would."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import InvalidHeader, NotFound, UsageError
from p2pcache.loader.memory import backend
from p2pcache.loader.memory.backend import cuda_device

SHAPE = (12, 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(
        {"w": torch.arange(120.0).reshape(SHAPE), "b": torch.ones(3)}, tmp_path / "m.safetensors"
    )
    return tmp_path


def test_one_axis_needs_no_list(folder: Path) -> None:
    axis = p2pcache.ParallelAxis("tensor", 1, 4, names="w")
    found = p2pcache.load(folder, parallel=axis)["w"]
    assert torch.equal(found, torch.arange(120.0).reshape(SHAPE)[3:6])


def test_a_number_names_a_gpu(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"cuda:99"):
        p2pcache.load(folder, device=99)


def test_a_gpu_number_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cuda_device("cuda:1").index == 1
    with pytest.raises(UsageError, match="2 GPUs"):
        cuda_device("cuda:2")


@pytest.mark.parametrize(
    ("built_for", "driver", "visible", "why"),
    [(None, True, None, "this torch is built for CPUs; install one"),
     ("13.0", True, "", r"CUDA_VISIBLE_DEVICES='' hides all GPUs; unset it"),
     ("13.0", False, "-1", r"CUDA_VISIBLE_DEVICES='-1' hides all GPUs; unset it"),
     ("13.0", False, "0", "no driver of a GPU is loaded; install it, or give the container a GPU"),
     ("13.0", True, "5", r"CUDA_VISIBLE_DEVICES='5' leaves no GPU; unset it, or name one that is here"),
     ("13.0", True, None, "torch finds no GPU though there is a driver; nvidia-smi")],
)  # fmt: skip
def test_why_a_gpu_can_not_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, built_for: str | None, driver: bool,
    visible: str | None, why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(backend, "_DRIVERS", (folder / ("m.safetensors" if driver else "nothing"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for call in (p2pcache.load, p2pcache.iter_tensors, p2pcache.safe_open):
        with pytest.raises(UsageError, match=f"can't be used here: {why}.*; or use device='cpu'"):
            call(folder, device="cuda")


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("inside", [True, False])
def test_load_into_tensors_of_inference_mode(folder: Path, mode: Any, *, inside: bool) -> None:
    with mode():
        target = {"w": torch.zeros(SHAPE, dtype=torch.float16), "b": torch.zeros(3)}
        if inside:
            p2pcache.load_into(target, folder)
    if not inside:
        p2pcache.load_into(target, folder)
    assert torch.equal(target["w"].float(), torch.arange(120.0).reshape(SHAPE))


def test_both_sides_of_a_mismatch_are_named(folder: Path) -> None:
    """A missing prefix shows only if both sides are named."""
    with pytest.raises(
        UsageError, match=r"model lacks .*model\.w.* target lacks .*\(b, w\)|\(w, b\)"
    ):
        p2pcache.load_into({"model.w": torch.zeros(SHAPE), "model.b": torch.zeros(3)}, folder)


def test_from_pretrained_refuses_wrong_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    auto_class = type("Auto", (), {"from_pretrained": print})
    for name in ("", None):
        with pytest.raises(UsageError, match="the model's name"):
            p2pcache.from_pretrained(name, auto_class)  # type: ignore[arg-type]
    for path in ("./none", folder / "none"):
        with pytest.raises(NotFound, match="no such directory"):
            p2pcache.from_pretrained(path, auto_class)
    with pytest.raises(UsageError, match="no class of transformers"):
        p2pcache.from_pretrained(folder, None)


@pytest.mark.parametrize("globs", ["*.mpl.*", ["*.mpl.*", "v"], r"model\.layers\..*"])
def test_a_glob_without_a_match_is_an_error(folder: Path, globs: Any) -> None:
    with pytest.raises(NotFound, match=r"none of the 2 tensors"):
        p2pcache.load(folder, filter=globs)
    with pytest.raises(NotFound):
        p2pcache.load_into({}, folder, strict=False, filter=globs)
    assert p2pcache.load(folder, filter=lambda name: name == "v") == {}
    assert list(p2pcache.load(folder, filter={"w", "v"})) == ["w"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"filter": 3}, "filter 3"), ({"filter": re.compile("w")}, "filter re.compile"),
        ({"filter": [b"w"]}, "filter"), ({"parallel": [("tensor", 0, 2)]}, "ParallelAxis"),
        ({"parallel": 3}, "ParallelAxis"), ({"timeout_s": "5"}, "timeout_s '5'"),
        ({"timeout_s": float("nan")}, "timeout_s nan"), ({"stage": (0.5, 2)}, "stage (0.5, 2)"),
        ({"memory_limit": 0}, "memory_limit 0"), ({"memory_limit": -1}, "memory_limit -1"),
        ({"device": "tpu"}, "device 'tpu'"), ({"framework": "tf"}, "framework 'tf'"),
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_type_are_named(
    folder: Path, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        p2pcache.load(folder, **wrong)


@pytest.mark.parametrize("wrong", [{"rank": "0"}, {"size": None}, {"dim": "x"}, {"names": ["w"]}])
def test_axes_of_a_wrong_type_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(next(iter(wrong.values()))))):
        p2pcache.ParallelAxis("tensor", **{"rank": 0, "size": 2, **wrong})


def test_target_keys_that_are_no_text(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the model lacks 1 tensor \(1\)"):
        p2pcache.load_into({1: torch.zeros(SHAPE)}, folder)


def test_errors_can_be_named_without_another_import() -> None:
    """`except p2pcache.errors.NotFound` in a process that imported nothing else."""
    code = "import p2pcache; assert p2pcache.errors.NotFound.exit_code == 3"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_report_names_tensors_without_a_partner(folder: Path) -> None:
    """As in torch's load_state_dict: otherwise strict=False that filled nothing looks like success."""
    target = {"w": torch.zeros(SHAPE), "x": torch.zeros(1)}
    report = p2pcache.load_into(target, folder, strict=False)
    assert (report.missing_keys, report.unexpected_keys) == (["x"], ["b"])
    assert "the model lacks 1 tensor (x), the target lacks 1 tensor (b)" in report.line()
    whole = p2pcache.load_into({"w": target["w"], "b": torch.zeros(3)}, folder)
    assert (whole.missing_keys, whole.unexpected_keys) == ([], [])
    assert "lacks" not in whole.line()


@pytest.mark.parametrize("strict", [True, False])
def test_a_sparse_target_is_refused(folder: Path, *, strict: bool) -> None:
    with pytest.raises(UsageError, match=r"w: .*sparse"):
        p2pcache.load_into({"w": torch.zeros(SHAPE).to_sparse()}, folder, strict, filter="w")


def test_an_index_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    with pytest.raises(NotFound, match="the model's directory"):
        p2pcache.load(tmp_path / "model.safetensors.index.json")


def test_a_pointer_file_of_git_lfs_is_named(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "m.safetensors").write_text(text)
    with pytest.raises(InvalidHeader, match="git lfs pull"):
        p2pcache.load(tmp_path)


def test_a_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotFound, match="snapshot"):
        p2pcache.load(tmp_path)


def test_tensors_without_an_address_count_as_different(folder: Path) -> None:
    """The address of every DTensor is 0, which doesn't make them one tensor."""

    class Shell(torch.Tensor):  # type: ignore[misc]
        def data_ptr(self) -> int:
            return 0

    shells = {name: torch.zeros(n).as_subclass(Shell) for name, n in (("w", SHAPE), ("b", 3))}
    with pytest.raises(UsageError, match=r"w: is no plain tensor.*Shell.*to_local"):
        p2pcache.load_into(shells, folder, filter="w", strict=False)
    with pytest.raises(UsageError, match=r"the target lacks 1 tensor \(b\)"):
        p2pcache.load_into({"w": shells["w"]}, folder)

"""Mapped tensors: when they are, what they cost, and what a writer of them changes."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import IntegrityError, TimedOut, UsageError
from p2pcache.loader.source import directory
from tests.loader.loader_kit import Spec, torch_bytes, write, write_index

DIGEST = "ab" * 32
MiB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with the name of a published tree, and a tag's link to it."""
    root = tmp_path / "models/team/m"
    tree = root / f"@{DIGEST}"
    tree.mkdir(parents=True)
    (root / "v1").symlink_to(tree.name)
    write(tree / "m.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(100)])
    return tree


def is_mapped(tensor: torch.Tensor, folder: Path) -> bool:
    """Whether the tensor's memory is a mapping of a file of this folder."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_ = line.split()
        low, high = (int(text, 16) for text in span.split("-"))
        if low <= tensor.data_ptr() < high:
            return str(folder) in line
    return False


@pytest.mark.parametrize("name", ["v1", f"@{DIGEST}", f"@{DIGEST}/m.safetensors", "v1/sub"])
def test_what_is_published_is_mapped_and_other_directories_are_not(tree: Path, name: str) -> None:
    (tree / "sub").mkdir()
    (tree / "sub/m.safetensors").hardlink_to(tree / "m.safetensors")
    found = p2pcache.load(tree.parent / name)
    assert len(found) == 100
    assert all(is_mapped(tensor, tree) for tensor in found.values())
    with p2pcache.safe_open(tree) as model:
        assert is_mapped(model.get_tensor("layers.7.w"), tree)
        assert is_mapped(model.get_slice("layers.7.w")[3:5], tree)
    assert not is_mapped(p2pcache.load(tree, memory="private")["layers.7.w"], tree)
    plain = tree.rename(tree.with_name("plain"))
    assert not is_mapped(p2pcache.load(plain)["layers.7.w"], plain)
    assert is_mapped(p2pcache.load(plain, memory="mapped")["layers.7.w"], plain)


def test_who_writes_to_a_tensor_changes_no_file_and_no_other_tensor(tree: Path) -> None:
    before = (tree / "m.safetensors").read_bytes()
    found, other = p2pcache.load(tree), p2pcache.load(tree)
    kept = torch_bytes(other["layers.7.w"])
    found["layers.7.w"].fill_(7.0)
    assert (found["layers.7.w"] == 7.0).all()
    assert torch_bytes(other["layers.7.w"]) == kept
    assert (tree / "m.safetensors").read_bytes() == before


def test_tensors_outlive_the_model_and_its_files(tree: Path, tmp_path: Path) -> None:
    body = {name: torch_bytes(t) for name, t in p2pcache.load(tree, memory="private").items()}
    with p2pcache.iter_tensors(tree) as stream:
        found = dict(stream)
    for path in tree.iterdir():
        path.unlink()
    del stream
    assert {name: torch_bytes(tensor) for name, tensor in found.items()} == body
    files = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert not any(str(tree) in str(file) for file in files)
    mapped = found.pop("layers.0.w")
    del found
    assert is_mapped(mapped, tmp_path)
    del mapped
    assert str(tree) not in Path("/proc/self/maps").read_text()


def test_a_stream_of_mappings_ends_as_any_other(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    with p2pcache.iter_tensors(tree) as stream:
        names = [next(stream)[0] for _ in range(70)]
        stream.close()
        assert list(stream) == []
    assert names == [f"layers.{i}.w" for i in range(70)]
    assert "70 tensors" in caplog.records[-1].message
    assert "; mapped; waits" in caplog.records[-1].message
    assert stream.report.mapped
    with pytest.raises(TimedOut):
        list(p2pcache.iter_tensors(tree, timeout_s=0.000001))
    shared: Any = "shared"
    with pytest.raises(UsageError, match="expected 'auto', 'mapped' or 'private'"):
        p2pcache.load(tree, memory=shared)


def test_a_file_that_was_cut_is_an_error_and_no_signal(tree: Path) -> None:
    with p2pcache.safe_open(tree) as model:
        os.truncate(tree / "m.safetensors", 4000)
        with pytest.raises(IntegrityError, match="too early"):
            model.get_tensor("layers.7.w")


def test_where_nothing_can_be_mapped_bytes_are_copied(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, nbytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    whole = {name: torch_bytes(tensor) for name, tensor in p2pcache.load(tree).items()}
    monkeypatch.setattr(directory, "map_private", refused)
    found = p2pcache.load(tree)
    assert {name: torch_bytes(tensor) for name, tensor in found.items()} == whole
    assert not is_mapped(found["layers.7.w"], tree)
    with p2pcache.safe_open(tree) as model:
        assert torch_bytes(model.get_tensor("layers.7.w")) == whole["layers.7.w"]


PROBE = """
import sys
import torch, p2pcache

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

p2pcache.load(sys.argv[1], memory="mapped", filter="layers.0.w")
before = anonymous()
found = p2pcache.load(sys.argv[1], memory="mapped")
total = sum(int(tensor.view(torch.uint8).sum()) for tensor in found.values())
print(anonymous() - before, total)
"""


def test_a_mapped_model_takes_no_memory(tmp_path: Path) -> None:
    save_file(
        {f"layers.{i}.w": torch.ones(32 * MiB, dtype=torch.uint8) for i in range(4)},
        tmp_path / "m.safetensors",
    )
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    added, total = map(int, done.stdout.split())
    assert total == 128 * MiB
    assert added < 16 << 10  # KiB


def test_parts_of_a_pipeline_and_variants_of_weights(tmp_path: Path) -> None:
    """As diffusers lays a model out: a folder for each part, and the same weights in two dtypes."""
    for folder in ("unet", "text_encoder"):
        (tmp_path / folder).mkdir()
    body = write(tmp_path / "unet/a.safetensors", [Spec("w", "F32", (8, 8))], seed=1)
    half = write(tmp_path / "unet/a.fp16.safetensors", [Spec("w", "F16", (8, 8))], seed=2)
    text = write(tmp_path / "text_encoder/m-1.safetensors", [Spec("t", "F32", (4,))], seed=3)
    write_index(tmp_path / "text_encoder", {"t": "m-1.safetensors"})
    for more in ({}, {"memory": "mapped"}):
        one: Any = {"subfolder": "unet", "files": "a.safetensors", **more}
        two: Any = {"files": "unet/*.fp16.safetensors", **more}
        three: Any = {"subfolder": "text_encoder/", **more}
        for told, wanted in ((one, body), (two, half), (three, text)):
            found = p2pcache.load(tmp_path, **told)
            assert {name: torch_bytes(tensor) for name, tensor in found.items()} == wanted
            with p2pcache.safe_open(tmp_path, **told) as model:
                assert model.keys() == list(wanted)
                assert "unet/a.safetensors" in model.files()
    targets = {name: torch.zeros(4) for name in text}
    p2pcache.load_into(targets, tmp_path, subfolder="text_encoder")
    assert {name: torch_bytes(tensor) for name, tensor in targets.items()} == text
    for wrong in ("../unet", "/unet"):
        with pytest.raises(UsageError, match="folder of the model"):
            p2pcache.load(tmp_path, subfolder=wrong)
    with pytest.raises(p2pcache.errors.NotFound, match=r"no files in vae/"):
        p2pcache.load(tmp_path, subfolder="vae")
    with pytest.raises(p2pcache.errors.NotFound, match=r"no \*\.fp8\.safetensors in unet/"):
        p2pcache.load(tmp_path, subfolder="unet", files="*.fp8.safetensors")


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_dtype_for_floating_point_numbers(tmp_path: Path, dtype: Any) -> None:
    tensors = {
        "w": torch.arange(6.0), "i": torch.arange(6), "q": torch.ones(4).to(torch.float8_e4m3fn),
        "b": torch.ones(3, dtype=torch.bfloat16),
    }  # fmt: skip
    save_file(tensors, tmp_path / "m.safetensors")
    for memory in ("mapped", "private"):
        found = p2pcache.load(tmp_path, dtype=dtype, memory=memory)
        assert torch.equal(found["w"], tensors["w"].to(torch.bfloat16))
        assert [found[n].dtype for n in "iqb"] == [tensors[n].dtype for n in "iqb"]
    for wrong in ("int8", "nothing", np.float16):
        with pytest.raises(UsageError, match="floating point"):
            p2pcache.load(tmp_path, dtype=wrong)
    with pytest.raises(UsageError, match="converts nothing"):
        p2pcache.load(tmp_path, "cpu", "np", dtype=dtype)


@pytest.mark.skipif(
    sys.platform != "linux", reason="a mapping keeps what was said of its file on Linux"
)
def test_the_kernel_reads_mapped_files_ahead_as_those_of_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads twice as much at once from a cold disk, if it is told that a file is read in order."""
    for name in ("a", "b"):
        write(
            tmp_path / f"{name}.safetensors", [Spec(name, "U8", (8,)), Spec(f"{name}2", "U8", (8,))]
        )
    told: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def listen(fd: int, start: int, length: int, advice: int) -> None:
        assert (start, length) == (0, 0)  # all of the file
        told.append((os.fstat(fd).st_ino, advice))
        real(fd, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", listen)
    p2pcache.load(tmp_path, memory="private")
    assert not told
    p2pcache.load(tmp_path, memory="mapped")
    files = [(tmp_path / f"{name}.safetensors").stat().st_ino for name in "ab"]
    assert told == [(number, os.POSIX_FADV_SEQUENTIAL) for number in files]

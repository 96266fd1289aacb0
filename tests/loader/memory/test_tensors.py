"""Tensors over host memory, and the bytes behind a caller's tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import (
    UsageError,
)
from tests.loader.loader_kit import Spec, torch_bytes, write

MiB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    return tmp_path, write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (MiB,)) for i in range(16)])  # fmt: skip


def test_read_only_targets_are_refused(model: tuple[Path, dict[str, bytes]]) -> None:
    array = np.zeros(MiB, np.uint8)
    array.flags.writeable = False
    for target in (array, torch.zeros(1, dtype=torch.uint8).expand(MiB)):
        with pytest.raises(UsageError, match="t3"):
            p2pcache.load_into({"t3": target}, model[0], filter="t3")


def test_a_target_of_one_element_with_a_stride(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec("one", "BF16", (1,))])
    room = torch.zeros(2, dtype=torch.bfloat16)
    target = room[::2]
    assert target.is_contiguous()  # torch says so
    assert target.stride() == (2,)
    p2pcache.load_into({"one": target}, tmp_path)
    assert torch_bytes(room)[:2] == body["one"]
    assert torch_bytes(room)[2:] == b"\0\0"


def test_a_target_that_shows_other_values_than_its_memory(tmp_path: Path) -> None:
    """A lazy conjugate and a lazy negative are filled as torch's `copy_` fills them."""
    save_file({"c": torch.tensor([1 + 2j, 3 - 4j]), "n": torch.ones(2)}, tmp_path / "m.safetensors")
    targets = {
        "c": torch.zeros(2, dtype=torch.complex64).conj(),
        "n": torch._neg_view(torch.zeros(2)),
    }
    p2pcache.load_into(targets, tmp_path)
    assert targets["c"].tolist() == [1 + 2j, 3 - 4j]
    assert targets["n"].tolist() == [1, 1]


def test_loads_ignore_the_callers_default_device(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [Spec("empty", "F16", (0, 3)), Spec("some", "U8", (3,))])
    device: Any = torch.device("meta")
    with device:
        found = p2pcache.load(tmp_path)
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}

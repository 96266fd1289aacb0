"""`load_into`: which tensor goes where, and how."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import UsageError
from p2pcache.loader.plan.placement import Transfer, plan_placement
from p2pcache.loader.plan.selection import select_tensors
from p2pcache.loader.session import Session
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from tests.loader.loader_kit import Spec, torch_bytes, write


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that claims to be on a GPU."""
    kind = type("Placed", (torch.Tensor,), {"device": property(lambda _: torch.device(device))})
    return tensor.as_subclass(kind)


def test_one_ring_serves_one_device(tmp_path: Path) -> None:
    """A copy to a second device would run on that device's stream, where our event doesn't wait for it."""
    write(tmp_path / "m.safetensors", [Spec(name, "F32", (5,)) for name in "abc"])
    targets = {
        name: on(device, torch.zeros(5))
        for name, device in zip("abc", ["cuda:1", "cuda:0", "cuda:1"], strict=True)
    }
    session = open_session(tmp_path)
    placement = plan_placement(
        targets, select_tensors(list(session.catalog.tensors.values())), strict=True
    )
    session.source.close()
    assert set(placement.buffers) == {"a", "c"}
    assert placement.transfer("b") is Transfer.CONVERTED  # through host memory


def open_session(folder: Path) -> Session:
    source, deadline = DirectorySource(folder), Deadline(30, "m")
    return Session(source, open_catalog(source, deadline), deadline)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "model.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(6)]
    )
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_load_into_a_module_with_tied_weights(tmp_path: Path) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("steps", torch.zeros(()))

    body = write(
        tmp_path / "m.safetensors", [Spec("embed.weight", "F32", (10, 4)), Spec("steps", "F32", ())]
    )
    model = Model()
    p2pcache.load_into(model, tmp_path)
    assert torch_bytes(model.head.weight) == body["embed.weight"]
    assert model.embed.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_targets_that_show_one_memory_with_other_signs_are_refused(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """They aren't tied: what fills one makes the other one wrong."""
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "m.safetensors")
    memory = torch.zeros(2, dtype=dtype)
    other = memory.conj() if memory.is_complex() else torch._neg_view(memory)
    for into in ({"a": memory, "b": other}, {"b": other, "a": memory}, {"a": other, "b": memory}):
        with pytest.raises(UsageError, match="b: shares its memory with a"):
            p2pcache.load_into(into, tmp_path)
    with pytest.raises(UsageError, match=r"lacks 1 tensor .c."):
        p2pcache.load_into({"a": memory, "c": other}, tmp_path, files="m.*", filter="a")
    assert not memory.any()
    p2pcache.load_into({"a": other, "b": other.view_as(other)}, tmp_path)
    assert other.tolist() == [1, 1]


def test_load_into_converts_other_dtypes_and_strides(tmp_path: Path) -> None:
    specs = [Spec("a", "BF16", (8, 6)), Spec("b", "I32", (8, 6)), Spec("c", "I64", (8, 6))]
    write(tmp_path / "m.safetensors", specs)
    expected = p2pcache.load(tmp_path)
    into = {
        "a": torch.zeros(8, 6, dtype=torch.float32),
        "b": torch.zeros(6, 8, dtype=torch.int32).t(),  # strides
        "c": torch.zeros(8, 12, dtype=torch.int64)[:, ::2],
    }
    p2pcache.load_into(into, tmp_path)
    for name, tensor in into.items():
        assert torch_bytes(tensor) == torch_bytes(expected[name].to(tensor.dtype))
    arrays = {"b": np.zeros((8, 6), np.int64), "c": np.zeros((6, 8), np.int64).T}
    p2pcache.load_into(arrays, tmp_path, strict=False)
    assert (arrays["b"] == expected["b"].numpy()).all()
    assert (arrays["c"] == expected["c"].numpy()).all()


def test_load_into_converts_for_one_framework_at_a_time(folder: Path) -> None:
    into = {"layers.0.w": torch.zeros(30, 40).double(), "layers.1.w": np.zeros((30, 40))}
    with pytest.raises(UsageError, match="torch and numpy"):
        p2pcache.load_into(into, folder, strict=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": torch.zeros(1)}, "the model lacks 1 tensor .extra."),
        ({"layers.0.w": None}, "the target lacks 1 tensor"),
        ({"layers.0.w": torch.zeros(30, 41)}, "layers.0.w: the target has the shape"),
        ({"layers.0.w": torch.zeros(30, 40, device="meta")}, "meta device"),
        ({"layers.0.w": bytearray(4799)}, "4799 bytes"),
        ({"layers.0.w": b"\0" * 4800}, "can't load into a bytes"),
        ({"layers.0.w": memoryview(b"\0" * 4800)}, "read-only"),
        ({"layers.0.w": [1.0]}, "can't load into a list"),
    ],
)
def test_load_into_checks_before_it_writes(
    folder: Path, change: dict[str, object], words: str
) -> None:
    into: dict[str, object] = {f"layers.{i}.w": torch.zeros(30, 40) for i in range(6)}
    into |= change
    into = {name: target for name, target in into.items() if target is not None}
    with pytest.raises(UsageError, match=words):
        p2pcache.load_into(into, folder)
    assert not any(t.any() for t in into.values() if isinstance(t, torch.Tensor) and not t.is_meta)


def test_slices_go_into_their_targets(folder: Path) -> None:
    axis = p2pcache.ParallelAxis("tensor", 1, 2, dim=1, names="*.w")
    into = {f"layers.{i}.w": torch.zeros(30, 20) for i in range(6)}
    p2pcache.load_into(into, folder, parallel=[axis])
    whole = p2pcache.load(folder)
    for name, tensor in into.items():
        assert torch_bytes(tensor) == torch_bytes(whole[name][:, 20:])

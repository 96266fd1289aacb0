"""Open models: slices, threads, the line at their end."""

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import UsageError
from tests.loader.loader_kit import Spec, torch_bytes, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "model.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(6)]
    )
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_an_open_model_logs_its_line_when_it_is_closed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    with p2pcache.safe_open(folder) as model:
        assert len(model.keys()) == 6
    assert not caplog.records  # nothing was brought
    with p2pcache.safe_open(folder) as model:
        model.get_tensor("layers.0.w")
        for rows in (slice(10), slice(10, 30)):
            model.get_slice("layers.1.w")[rows]
        model.close()
    (record,) = caplog.records
    assert "2 tensors, 9.60 kB" in record.message
    assert "disk 100%" in record.message
    assert "memory" not in record.message.partition("waits")[0]


@pytest.mark.parametrize(
    "index",
    [
        (0, 0, 0),
        (slice(None, None, -2),),
        (..., ...),
        (30,),
        ("a",),
        (-31,),
        (True,),
        ([0],),
        (torch.tensor([1]),),
    ],
)
def test_wrong_indices_are_refused(folder: Path, index: tuple[object, ...]) -> None:
    with p2pcache.safe_open(folder) as model, pytest.raises(UsageError):
        model.get_slice("layers.0.w")[index]  # type: ignore[index]


def test_an_open_model_serves_many_threads(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (9 << 20,)) for i in range(3)])
    wrong: list[str] = []
    with p2pcache.safe_open(tmp_path) as model:

        def work(name: str) -> None:
            if torch_bytes(model.get_tensor(name)) != body[name]:
                wrong.append(name)

        crowd = [threading.Thread(target=work, args=(name,)) for name in list(body) * 2]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert not wrong


@pytest.fixture
def small(tmp_path: Path) -> Path:
    tensors = {"w": torch.arange(120.0).reshape(12, 10), "b": torch.ones(3)}
    save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "index",
    [np.int64(5), np.int32(-1), torch.tensor(3), slice(None, None, 2), slice(1, 9, 3),
     (slice(None), slice(2, 9, 4)), (slice(1, 7), slice(None, None, 5)), (3, slice(0, 8, 2)),
     (slice(np.int64(1), np.int64(3)), 2), slice(5, 2), slice(-3, None), (..., 1)],
)  # fmt: skip
def test_slices_equal_those_of_safetensors(small: Path, index: Any) -> None:
    with (
        p2pcache.safe_open(small) as ours,
        safetensors.safe_open(small / "m.safetensors", "pt") as theirs,
    ):
        # theirs doesn't take torch's numbers
        like = int(index) if isinstance(index, torch.Tensor) else index
        assert torch.equal(ours.get_slice("w")[index], theirs.get_slice("w")[like])
        assert ours.offset_keys() == theirs.offset_keys()


@pytest.mark.parametrize("index", [slice(0, 4, 0), slice("a", "b"), slice(0.5, 2)])
def test_wrong_slices_are_refused(small: Path, index: Any) -> None:
    with p2pcache.safe_open(small) as model, pytest.raises(UsageError, match="slice"):
        model.get_slice("w")[index]

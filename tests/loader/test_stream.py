"""Loads in progress: their limit, their line, their end."""

import gc
import logging
import threading
from pathlib import Path

import pytest
import torch

import p2pcache
from p2pcache.errors import IntegrityError
from p2pcache.loader.stream import (
    PADDING_BYTES,
    Tuning,
    make_staging,
)
from tests.loader.loader_kit import (
    Spec,
    reader_threads,
    soon,
    torch_bytes,
    write,
)
from tests.loader.memory.fake_device import FakeAsyncBackend


@pytest.mark.parametrize("limit", [1 << 20, 10_000_000, 1 << 30])
@pytest.mark.parametrize("read_bytes", [2 << 20, 8 << 20, 16 << 20])
def test_slots_are_powers_of_two_within_the_limit(limit: int, read_bytes: int) -> None:
    staging, tuning = make_staging(FakeAsyncBackend(), limit, Tuning(read_bytes=read_bytes))
    assert staging.ring.slot_bytes.bit_count() == 1
    assert staging.ring.nbytes <= limit
    assert tuning.read_bytes + PADDING_BYTES == staging.ring.slot_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "model.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(6)]
    )
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_load_logs_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "p2pcache.loader")
    with p2pcache.iter_tensors(folder) as stream:
        list(stream)
    (record,) = caplog.records
    assert "6 tensors, 28.8 kB" in record.message
    assert "disk 100%" in record.message
    assert "of 67.1 MB" in record.message
    assert stream.report.bytes == 6 * 4800
    assert stream.report.seconds > 0


def test_the_memory_limit_holds_while_the_consumer_is_slow(tmp_path: Path) -> None:
    specs = [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)]
    body = write(tmp_path / "m.safetensors", specs)
    with p2pcache.iter_tensors(tmp_path, memory_limit="9MiB") as stream:
        found = dict(stream)
    assert stream.report.memory_peak_bytes <= 9 << 20
    assert {name: torch_bytes(t) for name, t in found.items()} == body


@pytest.mark.parametrize("owned", [True, False])
def test_small_tensors_share_a_batch_only_below_the_limit(tmp_path: Path, *, owned: bool) -> None:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (600 << 10,)) for i in range(12)])
    with p2pcache.iter_tensors(tmp_path, memory_limit="2MiB", owned=owned) as stream:
        assert sum(1 for _ in stream) == 12
    assert stream.report.memory_peak_bytes <= 2 << 20
    into = {f"t{i}": torch.zeros(600 << 10, dtype=torch.int32) for i in range(12)}
    assert p2pcache.load_into(into, tmp_path, memory_limit="2MiB").memory_peak_bytes <= 2 << 20


def test_a_tensor_larger_than_the_limit_is_loaded_alone(tmp_path: Path) -> None:
    specs = [Spec("a", "U8", (100,)), Spec("big", "U8", (5 << 20,)), Spec("b", "U8", (100,))]
    body = write(tmp_path / "m.safetensors", specs)
    with p2pcache.iter_tensors(tmp_path, memory_limit="1MiB") as stream:
        assert {name: torch_bytes(t) for name, t in stream} == body
    assert stream.report.memory_peak_bytes == 5 << 20


def test_memory_of_dropped_tensors_is_used_again(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (4 << 20,)) for i in range(12)])
    addresses = set()
    for _, tensor in p2pcache.iter_tensors(tmp_path, memory_limit="8MiB"):
        addresses.add(tensor.data_ptr())
        del tensor
    assert len(addresses) <= 6


def test_tensors_outlive_stream_and_file(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(8)])
    with p2pcache.iter_tensors(tmp_path, memory_limit="2MiB") as stream:
        first, second = next(stream), next(stream)
    del stream
    gc.collect()
    (tmp_path / "m.safetensors").unlink()
    assert torch_bytes(first[1]) == body[first[0]]
    assert torch_bytes(second[1]) == body[second[0]]


def test_an_abandoned_stream_leaves_no_thread(folder: Path) -> None:
    write(folder / "model.safetensors", [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)])
    stream = p2pcache.iter_tensors(folder, memory_limit="1MiB")
    next(stream)
    assert any(t.name.startswith("p2pcache") for t in threading.enumerate())
    del stream
    gc.collect()
    assert reader_threads() == []


def test_a_file_that_shrinks_during_a_load_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, [Spec(f"t{i}", "U8", (1 << 20,)) for i in range(20)])
    stream = p2pcache.iter_tensors(tmp_path, memory_limit="1MiB")
    next(stream)
    with path.open("r+b") as file:
        file.truncate(9 << 20)
    with pytest.raises(IntegrityError, match="too early"), soon():
        list(stream)
    assert stream.report.failed
    assert reader_threads() == []
    with pytest.raises(StopIteration):
        next(stream)

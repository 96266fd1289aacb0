"""The ring and the device path, on a device whose copies happen as late as they may."""

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.errors import P2PCacheError
from p2pcache.loader.backend import HostMemory
from p2pcache.loader.catalog import Deadline, open_catalog
from p2pcache.loader.memory import Budget
from p2pcache.loader.pipeline import Pipeline
from p2pcache.loader.plan import batches, choose
from p2pcache.loader.ring import Ring
from p2pcache.loader.sinks import DeviceSink
from p2pcache.loader.source import DirectorySource
from p2pcache.loader.stream import MIN_LIMIT_BYTES, Tuning, stage
from tests.loader.loader_kit import FakeAsyncBackend, Spec, soon, torch_bytes, write


def never() -> bool:
    return False


def test_a_slot_comes_again_only_after_its_copy() -> None:
    backend = FakeAsyncBackend()
    ring = Ring(backend, 1, 16)
    slot = ring.acquire(never)
    assert slot is not None
    slot.view[:] = b"A" * 16
    buffer = backend.alloc_device(16)
    backend.copy(slot, 0, 16, buffer, 0)
    ring.copying(slot, backend.record())
    again = ring.acquire(never)
    assert again is not None
    again.view[:] = b"B" * 16
    assert buffer.data == b"A" * 16


def test_the_fake_catches_a_ring_that_does_not_wait() -> None:
    """The opponent must be able to win, or the other tests mean nothing."""
    backend = FakeAsyncBackend()
    slot, buffer = backend.alloc_host(4), backend.alloc_device(4)
    slot.view[:] = b"AAAA"
    backend.copy(slot, 0, 4, buffer, 0)
    event = backend.record()
    with pytest.raises(AssertionError, match="before its copies"):
        backend.tensor(buffer, 0, 4, "U8", (4,))
    slot.view[:] = b"BBBB"  # recycled too early
    backend.ready(buffer, [event])
    assert torch_bytes(backend.tensor(buffer, 0, 4, "U8", (4,))) == b"BBBB"


def test_an_empty_ring_waits_and_can_be_stopped() -> None:
    ring = Ring(FakeAsyncBackend(), 1, 16)
    slot = ring.acquire(never)
    assert slot is not None
    stop = threading.Event()
    found: list[HostMemory | None] = []
    thread = threading.Thread(target=lambda: found.append(ring.acquire(stop.is_set)))
    thread.start()
    thread.join(0.15)
    assert thread.is_alive()
    stop.set()
    thread.join(30)
    assert found == [None]
    ring.give_back(slot)
    assert ring.acquire(never) is slot


def run(
    folder: Path, slots: int, slot_bytes: int, threads: int, budget: int
) -> dict[str, torch.Tensor]:
    backend = FakeAsyncBackend()
    staging, tuning = stage(
        backend,
        slots * slot_bytes,
        Tuning(threads=threads, read_bytes=slot_bytes, ring_slots=slots),
    )
    source = DirectorySource(folder)
    deadline = Deadline(30, "m")
    wants = choose(list(open_catalog(source, deadline).tensors.values()))
    pipeline = Pipeline(
        source,
        batches(wants, 1 << 18),
        DeviceSink(backend, Budget(budget)),
        deadline,
        threads=threads,
        read_bytes=tuning.read_bytes,
        staging=staging,
    )
    found: dict[str, torch.Tensor] = {}
    try:
        while (batch := pipeline.next()) is not None:
            found.update(batch)
    finally:
        pipeline.close()
        source.close()
    assert all(event.come for event in backend.events)
    return found


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_everything_arrives_through_few_slots(tmp_path: Path, slots: int, threads: int) -> None:
    specs = [Spec(f"t{i}", "BF16", (i * 37 % 300, 40)) for i in range(60)]
    specs += [Spec("big", "F32", (700, 1000)), Spec("s", "I64", ()), Spec("z", "F16", (0,))]
    body = write(tmp_path / "m.safetensors", specs, pad=3)
    with soon():
        found = run(tmp_path, slots, 200 << 10, threads, 1 << 20)
    assert {name: torch_bytes(t) for name, t in found.items()} == body


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 60_000), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(70 << 10, 150 << 10),
    st.integers(1, 3),
)
def test_any_sizes_through_any_ring(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    slots: int,
    slot_bytes: int,
    threads: int,
) -> None:
    folder = tmp_path_factory.mktemp("m")
    body = write(folder / "m.safetensors", [Spec(f"t{i}", "U8", (n,)) for i, n in enumerate(sizes)])
    found = run(folder, slots, slot_bytes, threads, MIN_LIMIT_BYTES)
    assert {name: torch_bytes(t) for name, t in found.items()} == body


def test_a_read_that_fails_ends_the_load_and_frees_the_slot(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (300_000,)) for i in range(4)])
    source = DirectorySource(tmp_path)
    catalog = open_catalog(source, Deadline(None, "m"))
    with (tmp_path / "m.safetensors").open("r+b") as file:
        file.truncate(500_000)
    backend = FakeAsyncBackend()
    staging, tuning = stage(backend, 4 << 20, Tuning(threads=2))
    plan = batches(choose(list(catalog.tensors.values())), 1 << 18)
    sink = DeviceSink(backend, Budget(1 << 30))
    pipeline = Pipeline(source, plan, sink, Deadline(None, "m"), threads=2, staging=staging,
                        read_bytes=tuning.read_bytes)  # fmt: skip
    with soon(), pytest.raises(P2PCacheError, match="too early"):
        list(iter(pipeline.next, None))
    pipeline.close()
    for _ in range(4):
        assert staging.ring.acquire(never) is not None

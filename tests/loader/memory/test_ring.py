"""The ring and the device path, on a device whose copies happen as late as they may."""

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.loader.memory.backend import HostMemory
from p2pcache.loader.memory.host_pool import Budget
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import batches
from p2pcache.loader.plan.placement import Transfer, plan_placement
from p2pcache.loader.plan.selection import select_tensors
from p2pcache.loader.session import Session
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.stream import (
    MIN_LIMIT_BYTES,
    PADDING_BYTES,
    TensorStream,
    Tuning,
    make_staging,
)
from p2pcache.loader.transfer.pipeline import Pipeline
from p2pcache.loader.transfer.sinks import DeviceSink
from tests.loader.loader_kit import (
    FakeAsyncBackend,
    FakeEvent,
    Spec,
    reader_threads,
    soon,
    torch_bytes,
    write,
)


def never() -> bool:
    return False


def open_session(folder: Path) -> Session:
    source, deadline = DirectorySource(folder), Deadline(30, "m")
    return Session(source, open_catalog(source, deadline), deadline)


def test_a_slot_comes_again_only_after_its_copy() -> None:
    backend = FakeAsyncBackend()
    ring = Ring(backend, 1, 16)
    slot = ring.acquire(never)
    assert slot is not None
    slot.view[:] = b"A" * 16
    buffer = backend.alloc_device(16)
    backend.copy(slot, 0, 16, buffer, 0)
    ring.on_copying(slot, backend.record())
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


class CountingBackend(FakeAsyncBackend):
    """Says how many slots it made, and makes no more than so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.made = 0
        self._most = most

    def alloc_host(self, nbytes: int) -> HostMemory:
        if self.made == self._most:
            raise NoSpace("can't pin more")
        self.made += 1
        return super().alloc_host(nbytes)


def copied(backend: FakeAsyncBackend, ring: Ring) -> FakeEvent:
    """One turn of a slot; its copy runs on."""
    slot = ring.acquire(never)
    assert slot is not None
    backend.copy(slot, 0, 16, backend.alloc_device(16), 0)
    event = backend.record()
    ring.on_copying(slot, event)
    return event


def test_slots_are_made_when_copies_are_behind_only() -> None:
    backend = CountingBackend(9)
    ring = Ring(backend, 3, 16)
    for _ in range(5):
        backend.sync(copied(backend, ring))
    assert backend.made == 1
    for _ in range(7):
        copied(backend, ring)
    assert backend.made == 3


def test_a_ring_goes_on_with_the_slots_that_could_be_made() -> None:
    backend = CountingBackend(2)
    ring = Ring(backend, 8, 16)
    for _ in range(7):
        copied(backend, ring)
    assert backend.made == 2
    with pytest.raises(NoSpace):
        Ring(CountingBackend(0), 8, 16)


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
    staging, tuning = make_staging(
        backend,
        slots * slot_bytes,
        Tuning(threads=threads, read_bytes=slot_bytes, ring_slots=slots),
    )
    source = DirectorySource(folder)
    deadline = Deadline(30, "m")
    items = select_tensors(list(open_catalog(source, deadline).tensors.values()))
    pipeline = Pipeline(
        source,
        batches(items, 1 << 18),
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
    staging, tuning = make_staging(backend, 4 << 20, Tuning(threads=2))
    plan = batches(select_tensors(list(catalog.tensors.values())), 1 << 18)
    sink = DeviceSink(backend, Budget(1 << 30))
    pipeline = Pipeline(source, plan, sink, Deadline(None, "m"), threads=2, staging=staging,
                        read_bytes=tuning.read_bytes)  # fmt: skip
    with soon(), pytest.raises(P2PCacheError, match="too early"):
        list(iter(pipeline.next, None))
    pipeline.close()
    for _ in range(4):
        assert staging.ring.acquire(never) is not None


class FailingBackend(FakeAsyncBackend):
    """A device that fails at some time, and at each call from then on, as CUDA's do."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good  # events that still come

    def sync(self, event: FakeEvent) -> None:
        if self.good <= 0:
            raise P2PCacheError("cuda:0 failed: an illegal memory access")
        self.good -= 1
        super().sync(event)


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_device_that_fails_ends_the_load_and_all_is_let_go(tmp_path: Path, good: int) -> None:
    """Also at the last event, after every tensor was handed out: what lies there isn't right."""
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (200_000,)) for i in range(4)])
    session = open_session(tmp_path)
    staging, tuning = make_staging(FailingBackend(good), 1 << 20, Tuning(threads=1, ring_slots=1))
    budget = Budget(1 << 20)
    sink = DeviceSink(staging.backend, budget)
    plan = batches(select_tensors(list(session.catalog.tensors.values())), 1 << 18)
    pipeline = Pipeline(session.source, plan, sink, session.deadline, threads=1, staging=staging,
                        read_bytes=tuning.read_bytes)  # fmt: skip
    stream = TensorStream(session, pipeline, budget)
    with soon(), pytest.raises(P2PCacheError, match="illegal"):
        list(stream)
    assert reader_threads() == []
    assert isinstance(session.source, DirectorySource)
    assert session.source._open == {}


@pytest.mark.parametrize("limit", [1 << 20, 10_000_000, 1 << 30])
@pytest.mark.parametrize("read_bytes", [2 << 20, 8 << 20, 16 << 20])
def test_slots_are_powers_of_two_because_torch_pins_such(limit: int, read_bytes: int) -> None:
    staging, tuning = make_staging(FakeAsyncBackend(), limit, Tuning(read_bytes=read_bytes))
    assert staging.ring.slot_bytes.bit_count() == 1
    assert staging.ring.nbytes <= limit
    assert tuning.read_bytes + PADDING_BYTES == staging.ring.slot_bytes


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that says that it lies on a GPU."""
    kind = type("Placed", (torch.Tensor,), {"device": property(lambda _: torch.device(device))})
    return tensor.as_subclass(kind)


def test_one_ring_serves_one_device(tmp_path: Path) -> None:
    """A copy to another one would run on that device's own stream, and outlive our event."""
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

"""The feeder and the readers, through a ring to a device whose copies happen as late as they may."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.errors import P2PCacheError
from p2pcache.loader.memory.host_pool import Budget
from p2pcache.loader.plan.batches import batches
from p2pcache.loader.plan.selection import ParallelAxis, select_tensors
from p2pcache.loader.progress import Progress
from p2pcache.loader.session import Session
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.stream import (
    MIN_LIMIT_BYTES,
    TensorStream,
    Tuning,
    make_staging,
)
from p2pcache.loader.transfer.pipeline import Pipeline
from p2pcache.loader.transfer.sinks import DeviceSink
from tests.loader.loader_kit import Spec, reader_threads, soon, torch_bytes, write
from tests.loader.memory.fake_device import FakeAsyncBackend, FakeBuffer, FakeEvent


def never() -> bool:
    return False


def open_session(folder: Path) -> Session:
    source, deadline = DirectorySource(folder), Deadline(30, "m")
    return Session(source, open_catalog(source, deadline), deadline)


def run(
    folder: Path,
    slots: int,
    slot_bytes: int,
    threads: int,
    budget: int,
    axes: Sequence[ParallelAxis] = (),
) -> dict[str, torch.Tensor]:
    backend = FakeAsyncBackend()
    staging, tuning = make_staging(
        backend,
        slots * slot_bytes,
        Tuning(threads=threads, read_bytes=slot_bytes, ring_slots=slots),
    )
    source = DirectorySource(folder)
    deadline = Deadline(30, "m")
    items = select_tensors(list(open_catalog(source, deadline).tensors.values()), axes=axes)
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
    backend.events.clear()  # they know the slots
    assert backend.pinned() == 0
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


@pytest.mark.parametrize("columns", [4, 48, 4000, 80_000])  # 80,000: too far apart for rows
def test_slices_of_rows_come_out_of_what_lies_between(tmp_path: Path, columns: int) -> None:
    specs = [Spec(f"t{i}", "F32", (rows, columns)) for i, rows in enumerate((1, 7, 33))]
    body = write(tmp_path / "m.safetensors", [*specs, Spec("whole", "U8", (999,))], pad=3)
    for rank in range(4):
        axis = ParallelAxis("tensor", rank, 4, dim=1, names="t*")
        found = run(tmp_path, 3, 200 << 10, 2, 4 << 20, axes=[axis])
        for name, (rows, _) in ((spec.name, spec.shape) for spec in specs):
            whole = torch.frombuffer(bytearray(body[name]), dtype=torch.float32)
            share = whole.reshape(rows, columns).chunk(4, 1)[rank]
            assert torch_bytes(found[name]) == torch_bytes(share), name
        assert torch_bytes(found["whole"]) == body["whole"]


def test_a_failed_read_ends_the_load_and_frees_the_slot(tmp_path: Path) -> None:
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
    del pipeline  # the other reader's error, in its queue, knows a slot
    backend.events.clear()
    assert backend.pinned() == 0


class CountingBackend(FakeAsyncBackend):
    """Counts what the consumer has to wait for, and the allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.waited_for = 0

    def alloc_device(self, nbytes: int) -> FakeBuffer:
        self.allocated += 1
        return super().alloc_device(nbytes)

    def record_all(self) -> list[FakeEvent]:
        self.waited_for += 1
        return super().record_all()


def test_a_batch_is_one_allocation_and_one_wait_of_the_consumer(tmp_path: Path) -> None:
    body = write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (70_000,)) for i in range(40)])
    session, backend = open_session(tmp_path), CountingBackend()
    staging, tuning = make_staging(backend, 1 << 20, Tuning(threads=3))
    plan = batches(select_tensors(list(session.catalog.tensors.values())), 1 << 20)
    assert sum(1 for batch in plan for _ in batch.reads(tuning.read_bytes)) > len(plan) > 1
    budget = Budget(1 << 22)
    pipeline = Pipeline(session.source, plan, DeviceSink(backend, budget), session.deadline, threads=3,
                        staging=staging, read_bytes=tuning.read_bytes)  # fmt: skip
    found = dict(TensorStream(session, pipeline, budget, Progress("m", 0)))
    assert {name: torch_bytes(t) for name, t in found.items()} == body
    assert backend.allocated == backend.waited_for == len(plan)


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
def test_a_failed_device_ends_the_load_and_releases_everything(tmp_path: Path, good: int) -> None:
    """Also at the last event, after every tensor was handed out: what lies there isn't right."""
    write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (200_000,)) for i in range(4)])
    session = open_session(tmp_path)
    staging, tuning = make_staging(FailingBackend(good), 1 << 20, Tuning(threads=1, ring_slots=1))
    budget = Budget(1 << 20)
    sink = DeviceSink(staging.backend, budget)
    plan = batches(select_tensors(list(session.catalog.tensors.values())), 1 << 18)
    pipeline = Pipeline(session.source, plan, sink, session.deadline, threads=1, staging=staging,
                        read_bytes=tuning.read_bytes)  # fmt: skip
    stream = TensorStream(session, pipeline, budget, Progress("m", 0))
    with soon(), pytest.raises(P2PCacheError, match="illegal"):
        list(stream)
    assert reader_threads() == []
    assert isinstance(session.source, DirectorySource)
    assert session.source._open == {}

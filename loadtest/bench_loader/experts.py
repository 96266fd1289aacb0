"""What Python alone allows of a load to a GPU, on DeepSeek-V3's layout: no disk, no device, only their calls.

45,000 matrices of 14.7 MB, each beside its scale of 3.5 KB, in 163 files: 660 GB. Reads do nothing. Each call to the
device takes as long as one of CUDA's and holds Python's lock meanwhile, which CUDA's don't always: a bound of what
the code costs, no forecast. The rest is the loader's own: batches, reads, ring, threads, tensors.

    python -m loadtest.bench_loader.experts --pairs 45000 --turns 3 --call-us 15
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from loadtest.kit.flags import count
from p2pcache.loader.format.dtypes import native_shape, torch_dtype
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.memory.backend import HostMemory
from p2pcache.loader.memory.host_pool import Budget
from p2pcache.loader.plan.batches import DEVICE_BATCH_BYTES, batches
from p2pcache.loader.plan.selection import select_tensors
from p2pcache.loader.source.base import Range, SourceStats
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.stream import Tuning, make_staging
from p2pcache.loader.transfer.pipeline import Pipeline
from p2pcache.loader.transfer.sinks import DeviceSink

GB = 1e9
LIMIT_BYTES = 256 << 20  # the default of a load to a GPU
PAIRS, FILES = 45_000, 163
WEIGHT, SCALE = (2048, 7168), (16, 56)  # of one expert's matrix, in FP8 and float32


def layout(pairs: int) -> list[TensorInfo]:
    """The model's tensors, in order of file and offset."""
    found: list[TensorInfo] = []
    each = -(-pairs // FILES)
    for number in range(pairs):
        path, at = f"model-{number // each:05}.safetensors", found[-1].end if number % each else 8
        name = f"model.layers.{number // 768}.mlp.experts.{number % 768}.weight"
        for dtype, shape, width in (("F8_E4M3", WEIGHT, 1), ("F32", SCALE, 4)):
            end = at + shape[0] * shape[1] * width
            suffix = "" if width == 1 else "_scale_inv"
            found.append(TensorInfo(name + suffix, dtype, shape, path, at, end))
            at = end
    return found


class EmptySource:
    """All bytes are here, and to read them takes nothing."""

    name, complete = "experts", True

    def files(self) -> list[tuple[str, int]]:
        """Nobody asks."""
        return []

    def available(self, path: str, start: int, end: int) -> bool:
        """Always."""
        return True

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """Nothing."""

    def on_planned(self, ranges: Sequence[Range]) -> None:
        """Nothing."""

    def demand(self, path: str, start: int, end: int) -> None:
        """Nothing."""

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """All are."""
        return list(range(len(ranges)))

    def stop(self) -> None:
        """Nothing."""

    def stats(self) -> SourceStats:
        """None."""
        return SourceStats()

    def close(self) -> None:
        """Nothing."""


class CallsOnly:
    """A device of which every call takes its time, with Python's lock, and does nothing."""

    def __init__(self, call_s: float) -> None:
        """`call_s`: of one call."""
        self._call_s = call_s
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        until = time.perf_counter() + self._call_s
        while time.perf_counter() < until:
            pass

    def enter(self) -> None:
        """Free, once a thread."""

    def alloc_host(self, nbytes: int) -> HostMemory:
        """Memory that nobody touches."""
        memory = memoryview(bytearray(nbytes))
        return HostMemory(memory, memory)

    def alloc_device(self, nbytes: int) -> Any:
        """A call, for a buffer without memory."""
        self._call()
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")

    def copy(self, source: HostMemory, start: int, length: int, buffer: Any, offset: int) -> None:
        """A call."""
        self._call()

    def copy_rows(
        self, source: HostMemory, length: int, stride: int, count: int, buffer: Any, offset: int
    ) -> None:
        """A call."""
        self._call()

    def record(self) -> object:
        """A call."""
        self._call()
        return object()

    def record_all(self) -> list[object]:
        """A call for each stream."""
        self._call()
        return [object()]

    def done(self, event: object) -> bool:
        """A call."""
        self._call()
        return True

    def sync(self, event: object) -> None:
        """A call."""
        self._call()

    def ready(self, buffers: Iterable[Any], events: list[Any]) -> None:
        """A call for each event and buffer."""
        for _ in (*events, *buffers):
            self._call()

    def tensor(
        self, buffer: Any, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
    ) -> object:
        """No call: torch makes views on the host alone, and they take their own time."""
        flat = buffer[offset : offset + nbytes]
        return flat.view(torch_dtype(dtype)).reshape(native_shape(dtype, shape, "pt"))


def load(tensors: Sequence[TensorInfo], call_s: float) -> tuple[float, int, int]:
    """One load.

    Returns:
        Seconds, tensors that came, calls to the device.
    """
    device = CallsOnly(call_s)
    began = time.perf_counter()
    plan = batches(select_tensors(list(tensors)), DEVICE_BATCH_BYTES)
    staging, tuning = make_staging(device, LIMIT_BYTES, Tuning())
    pipeline = Pipeline(
        EmptySource(), plan, DeviceSink(device, Budget(LIMIT_BYTES)), Deadline(None, "experts"),
        threads=tuning.threads, read_bytes=tuning.read_bytes, staging=staging,
    )  # fmt: skip
    came = 0
    try:
        while (made := pipeline.next()) is not None:
            came += len(made)
    finally:
        pipeline.close()
    return time.perf_counter() - began, came, device.calls


def main() -> int:
    """Measure and print; 1: tensors were lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=count, default=PAIRS)
    parser.add_argument("--turns", type=count, default=3)
    parser.add_argument("--call-us", type=float, default=15.0, help="of one call to the device")
    args = parser.parse_args()
    tensors = layout(args.pairs)
    size = sum(info.nbytes for info in tensors)
    rates, calls = [], 0
    for _ in range(args.turns):
        seconds, came, calls = load(tensors, args.call_us / 1e6)
        if came != len(tensors):
            print(f"WRONG: {came} of {len(tensors)} tensors came")
            return 1
        rates.append(size / GB / seconds)
    print(f"{size / GB:.0f} GB, {len(tensors)} tensors, {calls} calls of {args.call_us:g} us: "
          f"{statistics.median(rates):.0f} GB/s ({min(rates):.0f}-{max(rates):.0f} in {args.turns} turns)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

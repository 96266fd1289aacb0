"""One of several tensor-parallel workers of a node: `python -m loadtest.bench_gpu.workers JOB`.

It prepares, then runs each way that a line names, and answers each line with one. All workers are told
at the same time. On one GPU they share its link; on a node of eight each has its own.

The way "arena" is what a node could do together: the workers share memory that each has pinned. Of
each part of the model every worker reads its share from the page cache, all wait for one another, and
each copies its slices out. So the node reads each byte once, and each link carries an eighth.
"""

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import p2pcache
from loadtest.bench_gpu.ends import Device, Json, device_of, digest, shards
from loadtest.bench_gpu.ways import ACROSS, cut, engine_ways, spaces, timed
from p2pcache.loader.format.header import TensorInfo, parse

MiB = 1 << 20
PIECE_BYTES = 8 * MiB
PAUSE_S = 20e-6  # of a worker that waits for the others


class Together:
    """A barrier in shared memory: each worker counts in a page of its own."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        """`path`: a file of `size` pages of zeros."""
        with path.open("r+b") as file:
            self._pages = mmap.mmap(file.fileno(), size * mmap.PAGESIZE)
        self._rank, self._size, self._count = rank, size, 0

    def wait(self) -> None:
        """Until every worker has come here as often as this one."""
        self._count += 1
        self._put(self._rank, self._count)
        while any(self._get(i) < self._count for i in range(self._size)):
            time.sleep(PAUSE_S)

    def _get(self, rank: int) -> int:
        at = rank * mmap.PAGESIZE
        return int.from_bytes(self._pages[at : at + 8], "little")

    def _put(self, rank: int, count: int) -> None:
        at = rank * mmap.PAGESIZE
        self._pages[at : at + 8] = count.to_bytes(8, "little")


class Placed(NamedTuple):
    """A tensor in half of the arena."""

    info: TensorInfo
    path: Path
    at: int  # offset in the half


class Arena:
    """Memory that all workers of a node have pinned, in two halves."""

    def __init__(self, job: Json, device: Device, targets: dict[str, Any]) -> None:
        """Map and pin it; `pin_s` is what that took."""
        self._device, self._targets = device, targets
        self._rank, self._size = job["rank"], job["size"]
        self._folder = Path(job["folder"])
        self._together = Together(Path(job["shared"]) / "counts", self._rank, self._size)
        with (Path(job["shared"]) / "arena").open("r+b") as file:
            self._half = os.fstat(file.fileno()).st_size // 2
            memory = mmap.mmap(file.fileno(), 2 * self._half)
        self._flat = torch.frombuffer(memory, dtype=torch.uint8)
        began = time.perf_counter()
        device.register(self._flat.data_ptr(), len(self._flat))
        self.pin_s = time.perf_counter() - began
        self._waves = self._plan()
        (self._stream,) = device.streams(1)
        self._copy_2d = _copier_2d() if device.word != "cpu" else None

    def _plan(self) -> list[list[Placed]]:
        waves: list[list[Placed]] = []
        end = self._half + 1
        for path in shards(self._folder):
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = parse(file.read(length), path.stat().st_size, path.name)
            for info in header.tensors.values():
                if end + info.nbytes > self._half:
                    waves.append([])
                    end = 0
                waves[-1].append(Placed(info, path, end))
                end += -(-info.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return waves

    def run(self) -> None:
        """Bring the model."""
        events = [self._device.event(), self._device.event()]
        with self._stream():
            for number, wave in enumerate(self._waves):
                k = number % 2
                events[k].synchronize()
                self._together.wait()  # nobody copies from this half any more
                self._read(wave, k * self._half)
                self._together.wait()  # its bytes are there
                for placed in wave:
                    self._copy(placed, k * self._half)
                events[k].record()
        for event in events:
            event.synchronize()

    def _read(self, wave: list[Placed], base: int) -> None:
        pieces = [
            (placed, inside)
            for placed in wave
            for inside in range(0, placed.info.nbytes, PIECE_BYTES)
        ]
        for placed, inside in pieces[self._rank :: self._size]:
            length = min(PIECE_BYTES, placed.info.nbytes - inside)
            at = base + placed.at + inside
            view = memoryview(self._flat[at : at + length].numpy())
            fd = os.open(placed.path, os.O_RDONLY)
            try:
                os.preadv(fd, [view], placed.info.start + inside)
            finally:
                os.close(fd)

    def _copy(self, placed: Placed, base: int) -> None:
        info, start = placed.info, base + placed.at
        target = self._targets[info.name]
        whole = self._flat[start : start + info.nbytes].view(target.dtype).reshape(info.shape)
        part = cut(info.name, whole, self._rank, self._size)
        if self._copy_2d is not None and any(word in info.name for word in ACROSS):
            self._copy_2d(target, part)
        else:
            target.copy_(part, non_blocking=True)


def _copier_2d() -> Callable[[Any, Any], None] | None:
    """Copies of strided rows by the device itself: torch would gather them on the host first."""
    try:
        cudart = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    except OSError:
        return None
    call = cudart.cudaMemcpy2DAsync
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
                     ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]  # fmt: skip

    def copy(target: Any, part: Any) -> None:
        rows, width = part.shape[0], part.shape[1] * part.element_size()
        pitch = part.stride(0) * part.element_size()
        stream = torch.cuda.current_stream().cuda_stream
        failed = call(target.data_ptr(), width, part.data_ptr(), pitch, width, rows, 1, stream)
        torch.cuda.check_error(int(failed))

    return copy


def ways_of(job: Json, device: Device, targets: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What a worker can be told to do."""
    folder, rank, size = Path(job["folder"]), job["rank"], job["size"]
    ways = engine_ways(folder, device, rank, size, targets)
    del ways["device tensors, copied"]  # eight whole models on one link tell nothing of eight links
    names = sorted(targets)

    def mine(name: str) -> bool:
        return bool(names.index(name) % size == rank)

    ways["an eighth of the tensors, whole"] = lambda: dict(
        p2pcache.iter_tensors(folder, device=device.word, filter=mine)
    )
    return ways


def main(arguments: Sequence[str]) -> None:
    """The job is the argument; each line that comes names a way."""
    job = json.loads(arguments[0])
    device = device_of(job["device"])
    torch.set_num_threads(1)  # as engines have it
    targets = spaces(Path(job["folder"]), device, job["rank"], job["size"])
    arena = Arena(job, device, targets)
    ways = ways_of(job, device, targets) | {"arena": arena.run}
    print(json.dumps({"pin_s": arena.pin_s, "ways": list(ways)}), flush=True)
    for line in sys.stdin:
        told: Json = {"seconds": timed(device, ways[line.strip()])}
        told["digest"] = digest(targets)
        for target in targets.values():
            target.zero_()
        device.sync()
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

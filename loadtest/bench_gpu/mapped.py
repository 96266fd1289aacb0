"""Copies straight from the page cache: parts of a file are mapped, pinned, copied and let go; no byte is read.

And what it costs to get pinned memory in other ways.
"""

import ctypes
import mmap
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from loadtest.bench_gpu.ends import Device, Json, shards

MiB = 1 << 20
THREADS, PART_MIB = (1, 2, 4, 8), (16, 64, 128)
POPULATE_READ = 22  # MADV_POPULATE_READ


class Part:
    """A part of a file, mapped and pinned."""

    def __init__(self, device: Device, path: Path, at: int, nbytes: int, *, populate: bool) -> None:
        """`at`: a multiple of the page size."""
        fd = os.open(path, os.O_RDONLY)
        try:
            self._memory = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, offset=at)
        finally:
            os.close(fd)
        if populate:
            self._memory.madvise(POPULATE_READ)
        self.flat = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._device, self._address = device, self.flat.data_ptr()
        device.register(self._address, nbytes, read_only=True)

    def let_go(self) -> None:
        """After the last copy."""
        self._device.unregister(self._address)
        del self.flat
        self._memory.close()


def by_mapping(
    folder: Path,
    whole: torch.Tensor,
    device: Device,
    threads: int,
    mib: int,
    *,
    held: int = 2,
    populate: bool = False,
) -> None:
    """Threads that each map, pin and copy parts, and hold `held` of them until they are copied."""
    size = mib * MiB
    pieces, base = [], 0
    for path in shards(folder):
        length = path.stat().st_size
        pieces += [(path, at, min(size, length - at), base + at) for at in range(0, length, size)]
        base += length
    errors: list[BaseException] = []

    def work(number: int) -> None:
        (current,) = device.streams(1)
        pending: list[tuple[Part, Any]] = []
        try:
            with current():
                for path, at, nbytes, start in pieces[number::threads]:
                    part = Part(device, path, at, nbytes, populate=populate)
                    whole[start : start + nbytes].copy_(part.flat, non_blocking=True)
                    event = device.event()
                    event.record()
                    pending.append((part, event))
                    if len(pending) >= held:
                        _retire(*pending.pop(0))
                while pending:
                    _retire(*pending.pop(0))
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that measures
            errors.append(error)

    several = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a tensor over a mapping that can't be written: it never is
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
    if errors:
        raise errors[0]


def _retire(part: Part, event: Any) -> None:
    event.synchronize()
    part.let_go()


class Afterwards:
    """Parts that are let go when this is dropped."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def __del__(self) -> None:
        for part in self.parts:
            part.let_go()


def both(
    folder: Path,
    whole: torch.Tensor,
    device: Device,
    pool: torch.Tensor,
    readers: int,
    mappers: int,
) -> Afterwards:
    """Readers that fill pinned slots from the front, and mappers that pin parts from the back, until they meet.

    The driver pins on one core what readers would move on several.
    """
    size, slot = 64 * MiB, 16 * MiB
    left: deque[tuple[Path, int, int, int]] = deque()
    base = 0
    for path in shards(folder):
        length = path.stat().st_size
        left += [(path, at, min(size, length - at), base + at) for at in range(0, length, size)]
        base += length
    kept, errors = Afterwards(), []

    def read(number: int) -> None:
        (current,) = device.streams(1)
        slots = [pool[i * slot : (i + 1) * slot] for i in (2 * number, 2 * number + 1)]
        views, events = [memoryview(s.numpy()) for s in slots], [device.event(), device.event()]
        turn = 0
        with current():
            while left:
                path, at, nbytes, start = left.popleft()
                fd = os.open(path, os.O_RDONLY)
                for inside in range(0, nbytes, slot):
                    k, length = turn % 2, min(slot, nbytes - inside)
                    turn += 1
                    events[k].synchronize()
                    os.preadv(fd, [views[k][:length]], at + inside)
                    target = whole[start + inside : start + inside + length]
                    target.copy_(slots[k][:length], non_blocking=True)
                    events[k].record()
                os.close(fd)

    def pin(_: int) -> None:
        (current,) = device.streams(1)
        with current():
            while left:
                path, at, nbytes, start = left.pop()
                part = Part(device, path, at, nbytes, populate=False)
                kept.parts.append(part)
                whole[start : start + nbytes].copy_(part.flat, non_blocking=True)

    def safely(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except IndexError:  # another thread took the last part
            pass
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that measures
            errors.append(error)

    threads = [threading.Thread(target=safely, args=(read, i)) for i in range(readers)]
    threads += [threading.Thread(target=safely, args=(pin, i)) for i in range(mappers)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in `by_mapping`
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return kept


def few(folder: Path, whole: torch.Tensor, device: Device) -> dict[str, Callable[[], Any]]:
    """Readers and mappers at once, in the mixes that tell how they share the machine."""
    pool = device.pinned(2 * 12 * 16 * MiB)
    found: dict[str, Callable[[], Any]] = {}
    for readers, mappers in ((0, 1), (0, 2), (4, 1), (8, 1), (6, 2), (8, 0), (12, 0)):
        found[f"{readers} readers and {mappers} mappers, let go afterwards"] = (
            lambda readers=readers, mappers=mappers: both(  # type: ignore[misc]
                folder, whole, device, pool, readers, mappers
            )
        )
    return found


def many(folder: Path, whole: torch.Tensor, device: Device) -> dict[str, Callable[[], Any]]:
    """Mappers alone, by the size of parts."""
    found: dict[str, Callable[[], Any]] = {}
    for threads in THREADS:
        for mib in PART_MIB:
            found[f"mapped, {threads} threads, parts of {mib} MiB"] = (
                lambda threads=threads, mib=mib: by_mapping(folder, whole, device, threads, mib)  # type: ignore[misc]
            )
    found["mapped, 4 threads, parts of 64 MiB, populated"] = lambda: by_mapping(
        folder, whole, device, 4, 64, populate=True
    )
    found["mapped, 4 threads, parts of 64 MiB, let go at the end"] = lambda: by_mapping(
        folder, whole, device, 4, 64, held=1000
    )
    return found


def pins(device: Device) -> Iterator[Json]:
    """Seconds until memory is touched and pinned, by torch and by hand."""
    for mib in (16, 64, 256):
        began = time.perf_counter()
        kept = device.pinned(mib * MiB)
        yield _record(f"torch pins {mib} MiB", began, mib * MiB)
        del kept
    for huge in (False, True):
        for turn in range(2):
            size = 256 * MiB
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if huge:
                memory.madvise(mmap.MADV_HUGEPAGE)
            flat = torch.frombuffer(memory, dtype=torch.uint8)
            word = f"{'huge ' if huge else ''}pages of 256 MiB, time {turn + 1}"
            began = time.perf_counter()
            flat.view(-1, mmap.PAGESIZE)[:, 0].fill_(1)
            yield _record(f"touch {word}", began, size)
            began = time.perf_counter()
            device.register(flat.data_ptr(), size)
            yield _record(f"pin {word}", began, size)
            device.unregister(flat.data_ptr())
            del flat
            memory.close()
    began = time.perf_counter()
    kept_all = [device.empty(64 * MiB) for _ in range(32)]
    yield _record("allocate 2 GiB of the device in 64 MiB", began, 64 * MiB * len(kept_all))


def _record(name: str, began: float, nbytes: int) -> Json:
    seconds = time.perf_counter() - began
    return {"name": name, "turn": 1, "seconds": seconds, "bytes": nbytes}


def refusal(device: Device) -> Json:
    """Whether a refused registration spoils the next call of torch, and whether that can be mended."""
    told = []
    for mend in (False, True):
        try:
            device.register(4096, 4096)
            told.append("not refused")
            continue
        except RuntimeError as error:
            told.append(str(error).partition("\n")[0])
        if mend and device.word != "cpu":
            version = str(torch.version.cuda).partition(".")[0]
            told.append(f"last error {ctypes.CDLL(f'libcudart.so.{version}').cudaGetLastError()}")
        try:
            told.append(f"then torch says {float((torch.ones(1, device=device.word) + 1).sum())}")
        except RuntimeError as error:
            told.append(f"then torch raises {str(error).partition(chr(10))[0]}")
    return {"name": "a refused registration", "turn": 1, "failed": "; ".join(told)}

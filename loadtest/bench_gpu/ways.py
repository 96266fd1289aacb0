"""Experiments of the short form, each in one process: `python -m loadtest.bench_gpu.ways JOB`.

Each yields a record for each measurement as soon as it has it, in turns, so that one that is cut short
has told something. Turn 0 pays for what the process makes once: pinned memory, device memory. A record
has `name`, `turn`, `seconds` and `bytes`, or `failed`.
"""

import contextlib
import functools
import json
import mmap
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import safetensors
import torch

import p2pcache
from loadtest.bench_gpu import mapped as mapped_parts
from loadtest.bench_gpu.ends import (
    LOADERS,
    Device,
    Json,
    Tensors,
    copies,
    device_of,
    digest,
    shards,
)
from p2pcache.loader.stream import Tuning

MiB = 1 << 20
CEILING = "ceiling"
COPY_MIB, STREAMS, READERS = (1, 4, 8, 16, 32, 64), (1, 2), (1, 2, 4, 8, 12, 16)
POOL_BYTES = 256 * MiB  # of pinned memory that ceilings copy from
# How vLLM and SGLang cut a Llama for tensor parallelism.
ACROSS = ("o_proj", "down_proj")
ALONG = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
Records = Iterator[Json]


def timed(device: Device, work: Callable[[], Any]) -> float:
    """Seconds until the work, and all that the device does for it, is done."""
    device.sync()
    began = time.perf_counter()
    kept = work()  # held until the device is done
    device.sync()
    seconds = time.perf_counter() - began
    del kept
    return seconds


def in_turns(job: Json, device: Device, nbytes: int, ways: dict[str, Callable[[], Any]]) -> Records:
    """All ways in each turn, each turn begun by another; one that fails costs its own records only."""
    names = list(ways)
    for turn in range(job["turns"] + 1):
        first = turn % len(names) if names else 0
        for name in [*names[first:], *names[:first]]:
            try:
                seconds = timed(device, ways[name])
            except Exception as error:  # noqa: BLE001  # the others go on
                yield {
                    "name": name,
                    "turn": turn,
                    "failed": f"{type(error).__name__}: {error}"[:300],
                }
                names.remove(name)
                continue
            yield {"name": name, "turn": turn, "seconds": seconds, "bytes": nbytes}


def pinned_copies(device: Device, nbytes: int, mib: int = 8, streams: int = 1) -> Callable[[], Any]:
    """The ceiling: nothing but copies from pinned memory that is filled already."""
    slots = list(device.pinned(4 * mib * MiB).fill_(7).split(mib * MiB))
    target = device.empty(min(nbytes, POOL_BYTES))
    current = device.streams(streams)

    def work() -> None:
        for _ in range(nbytes // len(target)):
            copies(device, slots, target, current)

    return work


def ceilings(job: Json, device: Device) -> Records:
    """Copies by size and streams; page cache to pinned memory by threads; both at once, written by hand."""
    folder = Path(job["folder"])
    size = sum(path.stat().st_size for path in shards(folder))
    pool = device.pinned(POOL_BYTES).fill_(7)
    target = device.empty(POOL_BYTES)
    plain = torch.empty(64 * MiB, dtype=torch.uint8).fill_(7)
    ways: dict[str, Callable[[], Any]] = {}
    for mib in COPY_MIB:
        for count in STREAMS:
            slots, current = list(pool[: 4 * mib * MiB].split(mib * MiB)), device.streams(count)

            def work(slots: list[torch.Tensor] = slots, current: list[Any] = current) -> None:
                for _ in range(size // POOL_BYTES):
                    copies(device, slots, target, current)

            ways[f"copies of {mib} MiB, {count} streams"] = work
    ways["copies, not pinned"] = lambda: [
        target[: 64 * MiB].copy_(plain) for _ in range(size // len(plain))
    ]
    yield from in_turns(job, device, size // POOL_BYTES * POOL_BYTES, ways)
    ways = {
        f"page cache to pinned, {n} threads": lambda n=n: _read_all(folder, pool, n)  # type: ignore[misc]
        for n in READERS
    }
    whole = device.empty(size)
    for threads in (4, 8, 12):
        for mib in (8, 16):
            ways[f"by hand, {threads} threads, slots of {mib} MiB"] = (
                lambda threads=threads, mib=mib: _by_hand(folder, pool, whole, device, threads, mib)  # type: ignore[misc]
            )
    yield from in_turns(job, device, size, ways)
    for mib in (8, 128):
        began = time.perf_counter()
        kept = device.pinned(mib * MiB + 1)  # torch rounds up: a block that it hasn't cached
        yield {"name": f"pin {mib} MiB", "turn": 1, "seconds": time.perf_counter() - began,
               "bytes": len(kept)}  # fmt: skip


def _pieces(folder: Path, nbytes: int) -> list[tuple[Path, int]]:
    return [(path, at) for path in shards(folder) for at in range(0, path.stat().st_size, nbytes)]


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_all(folder: Path, pool: torch.Tensor, threads: int) -> None:
    slot = 8 * MiB
    pieces = _pieces(folder, slot)

    def work(number: int) -> None:
        view = memoryview(pool[number * slot : (number + 1) * slot].numpy())
        for path, at in pieces[number::threads]:
            _pread(path, at, view)

    _in_threads(threads, work)


def _by_hand(
    folder: Path, pool: torch.Tensor, whole: torch.Tensor, device: Device, threads: int, mib: int
) -> None:
    """Threads that each fill two slots in turn and copy them on a stream of their own."""
    slot = mib * MiB
    pieces = _pieces(folder, slot)
    bases, end = {}, 0  # where each file's bytes go
    for path in shards(folder):
        bases[path] = end
        end += path.stat().st_size

    def work(number: int) -> None:
        (current,) = device.streams(1)
        mine = [pool[i * slot : (i + 1) * slot] for i in (2 * number, 2 * number + 1)]
        views, events = [memoryview(m.numpy()) for m in mine], [device.event(), device.event()]
        with current():
            for turn, i in enumerate(range(number, len(pieces), threads)):
                k = turn % 2
                events[k].synchronize()
                path, at = pieces[i]
                got, start = _pread(path, at, views[k]), bases[path] + at
                whole[start : start + got].copy_(mine[k][:got], non_blocking=True)
                events[k].record()

    _in_threads(threads, work)


def _pread(path: Path, at: int, view: memoryview) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [view], at)
    finally:
        os.close(fd)


def cut(name: str, tensor: Any, rank: int, size: int) -> Any:
    """A rank's part, as an engine's weight loader narrows it; norms are whole on each."""
    if any(word in name for word in ACROSS):
        return tensor.chunk(size, 1)[rank]
    return tensor.chunk(size, 0)[rank] if any(word in name for word in ALONG) else tensor


def axes(rank: int, size: int) -> list[p2pcache.ParallelAxis]:
    """The same cut for `load_into`."""
    if size == 1:
        return []
    dims = [(word, 1) for word in ACROSS] + [(word, 0) for word in ALONG]
    return [p2pcache.ParallelAxis("tensor", rank, size, dim, f"*{word}*") for word, dim in dims]


def mapped(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of all files as safetensors' mapping has them."""
    for path in shards(folder):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                yield name, file.get_tensor(name)


def spaces(folder: Path, device: Device, rank: int, size: int) -> Tensors:
    """A rank's parameters, before a load."""
    return {
        name: torch.zeros_like(cut(name, tensor, rank, size), device=device.word,
                               memory_format=torch.contiguous_format)
        for name, tensor in mapped(folder)
    }  # fmt: skip


def engine_ways(
    folder: Path, device: Device, rank: int, size: int, targets: Tensors
) -> dict[str, Callable[[], Any]]:
    """How an engine's worker can fill its parameters; the first is what vLLM does by itself."""

    def copy(source: Any) -> None:
        for name, tensor in source:
            targets[name].copy_(cut(name, tensor, rank, size))

    return {
        "mapping, copied": lambda: copy(mapped(folder)),
        "host tensors, copied": lambda: copy(p2pcache.iter_tensors(folder)),
        "device tensors, copied": lambda: copy(p2pcache.iter_tensors(folder, device=device.word)),
        "load_into": lambda: p2pcache.load_into(targets, folder, parallel=axes(rank, size)),
    }


def engines(job: Json, device: Device) -> Records:
    """One worker alone with all of the model, then with an eighth."""
    folder = Path(job["folder"])
    for size, word in ((1, "whole"), (8, "an eighth")):
        targets = spaces(folder, device, 3 % size, size)
        nbytes = sum(t.nbytes for t in targets.values())
        found = engine_ways(folder, device, 3 % size, size, targets)
        if size == 1:  # transformers asks for tensors from four threads
            for threads in (1, 4):
                found[f"safe_open in {threads} threads, copied"] = functools.partial(
                    _one_by_one, folder, device, targets, threads
                )
        ways = {f"{name}, {word}": way for name, way in found.items()}
        seen: dict[str, str] = {}
        for record in in_turns(job, device, nbytes, ways):
            if record["turn"] == 0 and "seconds" in record:
                seen[record["name"]] = digest(targets)
                for target in targets.values():
                    target.zero_()
                record["wrong"] = len(set(seen.values())) > 1
            yield record


def _one_by_one(folder: Path, device: Device, targets: Tensors, threads: int) -> None:
    with (
        p2pcache.safe_open(folder, device=device.word) as opened,
        ThreadPoolExecutor(threads) as pool,
    ):

        def copy(name: str) -> None:
            targets[name].copy_(opened.get_tensor(name))

        list(pool.map(copy, targets))


def loads(job: Json, device: Device) -> Records:
    """Loads of one model with other settings, beside other loaders and the ceiling."""
    folder = Path(job["folder"])
    size = sum(path.stat().st_size for path in shards(folder))
    ways: dict[str, Callable[[], Any]] = {CEILING: pinned_copies(device, size)}
    for name, settings in job["settings"].items():
        more = dict(settings)
        limit = more.pop("memory_limit", None)
        ways[name] = lambda more=more, limit=limit: dict(  # type: ignore[misc]
            p2pcache.iter_tensors(folder, device=device.word, tuning=Tuning(**more),
                                  memory_limit=limit)
        )  # fmt: skip
    for loader in job.get("loaders", ()):
        ways[loader] = LOADERS[loader]({"folder": str(folder)}, device)
    yield from in_turns(job, device, size, ways)


def registration(job: Json, device: Device) -> Records:
    """What it costs to pin memory that exists already: anonymous, shared, and files in the page cache."""
    path = shards(Path(job["folder"]))[0]
    size = path.stat().st_size // mmap.PAGESIZE * mmap.PAGESIZE
    target = device.empty(size)
    kinds: dict[str, Callable[[int], mmap.mmap]] = {
        "anonymous memory": lambda _: mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
        "shared memory": lambda _: mmap.mmap(-1, size),
        "a private mapping of a file": lambda fd: mmap.mmap(
            fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ),
        "a shared mapping of a file": lambda fd: mmap.mmap(fd, size, prot=mmap.PROT_READ),
    }  # fmt: skip
    for turn in range(1, job["turns"] + 1):
        for name, make in kinds.items():
            fd = os.open(path, os.O_RDONLY)
            try:
                memory = make(fd)
            finally:
                os.close(fd)
            read_only = "shared mapping" in name
            flat = _flat(memory, writable=not read_only)
            if "memory" in name:
                flat.fill_(7)
            try:
                steps = _registered(device, flat, target, read_only=read_only)
            except RuntimeError as error:
                yield {"name": name, "turn": turn, "failed": str(error).partition("\n")[0]}
                continue
            for step, seconds in steps.items():
                yield {"name": f"{name}, {step}", "turn": turn, "seconds": seconds, "bytes": size}


def _flat(memory: mmap.mmap, *, writable: bool) -> torch.Tensor:
    if writable:
        return torch.frombuffer(memory, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is never written
        return torch.frombuffer(memory, dtype=torch.uint8)


def _registered(
    device: Device, flat: torch.Tensor, target: torch.Tensor, *, read_only: bool
) -> dict[str, float]:
    began = time.perf_counter()
    device.register(flat.data_ptr(), len(flat), read_only=read_only)
    registered = time.perf_counter()
    copied_s = timed(device, lambda: target.copy_(flat, non_blocking=True))
    before = time.perf_counter()
    device.unregister(flat.data_ptr())
    return {
        "pinned": registered - began,
        "copied": copied_s,
        "let go": time.perf_counter() - before,
    }


def calls(job: Json, device: Device) -> Records:
    """Which calls one load makes, and their time; of the second load of a process."""
    folder = Path(job["folder"])
    if device.word == "cpu":
        yield {"name": "calls", "turn": 1, "failed": "there are none without a GPU"}
        return
    from torch.profiler import ProfilerActivity, profile

    size = sum(path.stat().st_size for path in shards(folder))
    p2pcache.load(folder, device=device.word)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        timed(device, lambda: p2pcache.load(folder, device=device.word))
    for event in found.key_averages():
        if event.key.startswith(("cuda", "Memcpy")):
            # a call has the processor's time, a copy itself the GPU's alone
            spent_us = event.cpu_time_total or event.device_time_total
            yield {"name": event.key, "turn": 1, "seconds": spent_us / 1e6,
                   "bytes": size, "count": event.count}  # fmt: skip


def both(job: Json, device: Device) -> Records:
    """Copies from the page cache by readers and by mappings at the same time."""
    folder = Path(job["folder"])
    size = sum(path.stat().st_size for path in shards(folder))
    ways = {CEILING: pinned_copies(device, size)}
    ways |= mapped_parts.few(folder, device.empty(size), device)
    yield from in_turns(job, device, size, ways)


def straight(job: Json, device: Device) -> Records:
    """Copies straight from the page cache; ways to get pinned memory."""
    folder = Path(job["folder"])
    size = sum(path.stat().st_size for path in shards(folder))
    ways = {CEILING: pinned_copies(device, size)}
    ways |= mapped_parts.many(folder, device.empty(size), device)
    yield from in_turns(job, device, size, ways)
    yield from mapped_parts.pins(device)
    yield mapped_parts.refusal(device)


EXPERIMENTS: dict[str, Callable[[Json, Device], Records]] = {
    "ceilings": ceilings,
    "engines": engines,
    "loads": loads,
    "registration": registration,
    "straight": straight,
    "both": both,
    "calls": calls,
}


def main(arguments: Sequence[str]) -> None:
    """The job is the argument; a record a line."""
    job = json.loads(arguments[0])
    with contextlib.suppress(BrokenPipeError):
        for record in EXPERIMENTS[job["what"]](job, device_of(job["device"])):
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""One measurement of `bench_gpu`, in a process of its own: a new CUDA context, nothing pinned, nothing cached.

Context and imports come before the clock starts, pinned rings and device memory after it: a load in an
engine pays for those, too. The clock stops when the device has done everything.
"""

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from blake3 import blake3

import p2pcache
from p2pcache.loader.stream import Tuning

MiB = 1 << 20
READ_BYTES = 8 * MiB
REGISTER_READ_ONLY = 8  # cudaHostRegisterReadOnly
READERS = 4  # of the cold floor: a drive wants several requests at once
Json = dict[str, Any]
Tensors = dict[str, torch.Tensor]


class Event(Protocol):
    """Comes when what was begun before it on its stream is done."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class Device(Protocol):
    """What is measured; `Host` stands in where only the scripts are tried."""

    word: str

    def empty(self, nbytes: int) -> torch.Tensor: ...
    def pinned(self, nbytes: int) -> torch.Tensor: ...
    def streams(self, count: int) -> list[Callable[[], AbstractContextManager[Any]]]: ...
    def event(self) -> Event: ...
    def sync(self) -> None: ...
    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None: ...
    def unregister(self, address: int) -> None: ...


class Cuda:
    """The real one, by torch alone."""

    def __init__(self, word: str) -> None:
        """Make the context."""
        self.word = word
        torch.zeros(1, device=word)
        self.sync()

    def empty(self, nbytes: int) -> torch.Tensor:
        """Device memory, not touched."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.word)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that the device reads by itself."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def streams(self, count: int) -> list[Callable[[], AbstractContextManager[Any]]]:
        """New streams: each call of one makes it current."""
        made = [torch.cuda.Stream(self.word) for _ in range(count)]
        return [lambda stream=stream: torch.cuda.stream(stream) for stream in made]  # type: ignore[misc]

    def event(self) -> Event:
        """Recorded on the current stream."""
        found: Event = torch.cuda.Event()
        return found

    def sync(self) -> None:
        """Until the device has done everything."""
        torch.cuda.synchronize(self.word)

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Pin memory that exists already.

        Raises:
            RuntimeError: CUDA refused.
        """
        flags = REGISTER_READ_ONLY if read_only else 0
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, nbytes, flags)))

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(address)))


class Host:
    """Host memory in a device's place: it tries the scripts where no GPU is, and measures nothing."""

    word = "cpu"

    def empty(self, nbytes: int) -> torch.Tensor:
        """See `Cuda.empty`."""
        return torch.empty(nbytes, dtype=torch.uint8)

    pinned = empty

    def streams(self, count: int) -> list[Callable[[], AbstractContextManager[Any]]]:
        """See `Cuda.streams`."""
        return [nullcontext] * count

    def event(self) -> Event:
        """See `Cuda.event`."""
        return _Past()

    def sync(self) -> None:
        """See `Cuda.sync`."""

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """See `Cuda.register`."""

    def unregister(self, address: int) -> None:
        """See `Cuda.unregister`."""


class _Past:
    """An event that has come."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def device_of(word: str) -> Device:
    """The device of a name."""
    return Host() if word == "cpu" else Cuda(word)


def do(job: Json, device: Device) -> Json:
    """Measure one thing: `job["what"]` says which."""
    return {"copy": copy, "arena": arena, "read": cold_read, "load": load}[job["what"]](job, device)


def copy(job: Json, device: Device) -> Json:
    """Copies from host memory that is filled already: nothing brings bytes to the device sooner."""
    size, slot = job["bytes"], job["slot_bytes"]
    target = device.empty(size)
    make = device.pinned if job["pinned"] else _plain
    slots = [make(slot).fill_(7) for _ in range(job["slots"])]
    device.sync()
    return {"seconds": copies(device, slots, target, device.streams(job["streams"]))}


def _plain(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


def copies(
    device: Device,
    slots: list[torch.Tensor],
    target: torch.Tensor,
    streams: list[Callable[[], AbstractContextManager[Any]]],
) -> float:
    """Fill `target` from slots in turn; seconds until the device has done it."""
    began = time.perf_counter()
    slot_bytes = len(slots[0])
    for i, at in enumerate(range(0, len(target), slot_bytes)):
        part = target[at : at + slot_bytes]
        with streams[i % len(streams)]():
            part.copy_(slots[i % len(slots)][: len(part)], non_blocking=True)
    device.sync()
    return time.perf_counter() - began


def arena(job: Json, device: Device) -> Json:
    """What it costs to make, touch and pin memory that an agent could share, and its copies then."""
    size = job["bytes"]
    fd = os.memfd_create("p2pcache-bench")
    try:
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    began = time.perf_counter()
    flat.fill_(7)
    touched = time.perf_counter()
    device.register(flat.data_ptr(), size)
    registered = time.perf_counter()
    target = device.empty(size)
    device.sync()
    slots = list(flat.split(READ_BYTES))
    copied_s = copies(device, slots, target, device.streams(1))
    begin = time.perf_counter()
    device.unregister(flat.data_ptr())
    unregister_s = time.perf_counter() - begin
    return {
        "touch_s": touched - began, "register_s": registered - touched, "copy_s": copied_s,
        "unregister_s": unregister_s,
    }  # fmt: skip


def cold_read(job: Json, _: Device) -> Json:
    """The files from disk into reused memory: no load is quicker where they aren't in the page cache."""
    paths = shards(Path(job["folder"]))
    forget(paths)
    jobs = [(p, at) for p in paths for at in range(0, p.stat().st_size, READ_BYTES)]

    def work(number: int) -> None:
        room = memoryview(bytearray(READ_BYTES))
        for path, at in jobs[number::READERS]:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.preadv(fd, [room], at)
            finally:
                os.close(fd)

    began = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(work, range(READERS)))
    return {"seconds": time.perf_counter() - began}


def load(job: Json, device: Device) -> Json:
    """One loader brings one model; all its tensors are held until the device is done.

    With `again` a second time, into memory that the process has by now.
    """
    begin = LOADERS[job["loader"]](job, device)
    if job.get("cold"):
        forget(shards(Path(job["folder"])))
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds, found = _timed(begin, device)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told: Json = {"seconds": seconds, "cpu_s": cpu_s}
    if job.get("check"):
        told["digest"] = digest(found)
    if job.get("again"):
        found = {}
        told["again_s"] = _timed(begin, device)[0]
    return told


def _timed(begin: "Begin", device: Device) -> tuple[float, Tensors]:
    began = time.perf_counter()
    found = begin()
    device.sync()
    return time.perf_counter() - began, found


def digest(tensors: Tensors) -> str:
    """Of all names and bytes."""
    hasher: Any = blake3(max_threads=blake3.AUTO)
    for name in sorted(tensors):
        hasher.update(name.encode())
        flat = tensors[name].detach().reshape(-1).view(torch.uint8).cpu()
        hasher.update(memoryview(flat.numpy()))
    found: str = hasher.hexdigest()
    return found


def shards(folder: Path) -> list[Path]:
    """The files that hold weights."""
    return sorted(folder.glob("*.safetensors"))


def forget(paths: list[Path]) -> None:
    """Out of the page cache, as far as the kernel obeys."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


# Each prepares what doesn't count and returns what does.
Begin = Callable[[], Tensors]


def ours(job: Json, device: Device) -> Begin:
    """`p2pcache.iter_tensors` to new tensors."""
    tuning = Tuning(**job.get("tuning", {}))

    def begin() -> Tensors:
        return dict(p2pcache.iter_tensors(job["folder"], device=device.word, tuning=tuning,
                                          agent=job.get("agent")))  # fmt: skip

    return begin


def ours_into(job: Json, device: Device) -> Begin:
    """`p2pcache.load_into` tensors that are there."""
    targets: Tensors = {}
    for path in shards(Path(job["folder"])):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                targets[name] = torch.zeros_like(file.get_tensor(name), device=device.word)
    device.sync()

    def begin() -> Tensors:
        p2pcache.load_into(targets, job["folder"])
        return targets

    return begin


def theirs(job: Json, device: Device) -> Begin:
    """`safetensors.torch.load_file` of each shard."""
    paths = shards(Path(job["folder"]))
    return lambda: {
        name: tensor
        for path in paths
        for name, tensor in safetensors.torch.load_file(path, device=device.word).items()
    }


def runai(job: Json, device: Device) -> Begin:
    """Run:ai's streamer: it yields host tensors, each copied to the device."""
    from runai_model_streamer import SafetensorsStreamer

    paths = [str(path) for path in shards(Path(job["folder"]))]

    def begin() -> Tensors:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(paths, device="cpu")
            return {name: tensor.to(device.word) for name, tensor in streamer.get_tensors()}

    return begin


def fast(job: Json, device: Device) -> Begin:
    """The fastsafetensors loader through its pinned bounce buffers."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    paths = [str(path) for path in shards(Path(job["folder"]))]

    def begin() -> Tensors:
        loader = SafeTensorsFileLoader(SingleGroup(), device=device.word, nogds=True)
        loader.add_filenames({0: paths})
        buffer = loader.copy_files_to_device()
        return {name: buffer.get_tensor(name) for name in loader.get_keys()}

    return begin


def instant(job: Json, device: Device) -> Begin:
    """InstantTensor through the page cache; it knows GPUs only."""
    os.environ.setdefault("INSTANTTENSOR_BACKEND", "BUFFERED")
    import instanttensor

    paths = [str(path) for path in shards(Path(job["folder"]))]

    def begin() -> Tensors:
        with instanttensor.safe_open(list(paths), framework="pt", device=device.word) as file:
            return dict(file.tensors())

    return begin


LOADERS: dict[str, Callable[[Json, Device], Begin]] = {
    "p2pcache": ours,
    "p2pcache-into": ours_into,
    "safetensors": theirs,
    "runai": runai,
    "fastsafetensors": fast,
    "instanttensor": instant,
}


def main() -> None:
    """The job is the argument, the answer the last line."""
    job = json.loads(sys.argv[1])
    print(json.dumps(do(job, device_of(job["device"]))), flush=True)


if __name__ == "__main__":
    main()

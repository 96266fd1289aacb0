"""One contestant of `bench_loader`, in a process of its own: prepare, wait for a line, load, tell.

Those of the group "fill" fill the same tensors, allocated and touched beforehand, from the same files. Those of
"load" make tensors of their own and then touch each page of them; those of "tiny" make a hundred thousand and touch
none. Those of "pretrained" make transformers' model and touch its pages.
"""

import gc
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from blake3 import blake3

import p2pcache

MiB = 1 << 20
READ_BYTES = 8 * MiB
PAGE_BYTES = 4096
Targets = dict[str, torch.Tensor]


def spaces(folder: Path) -> Targets:
    """Zeroed tensors of the model's names, dtypes and shapes: every page is touched."""
    found: Targets = {}
    for path in shards(folder):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                like = file.get_tensor(name)
                found[name] = torch.empty_like(like).fill_(0)
    return found


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def floor(folder: Path, targets: Targets, _: int) -> None:
    """Two threads, preadv of 8 MiB, straight to where the bytes belong: nothing else is done."""
    jobs: list[tuple[int, int, memoryview]] = []
    for path in shards(folder):
        fd = os.open(path, os.O_RDONLY)
        size = int.from_bytes(os.pread(fd, 8, 0), "little")
        for name, entry in json.loads(os.pread(fd, size, 8)).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            view = memoryview(targets[name].reshape(-1).view(torch.uint8).numpy())
            jobs += [(fd, at, view[at - begin : min(end, at + READ_BYTES) - begin])
                     for at in range(begin, end, READ_BYTES)]  # fmt: skip

    def work(mine: list[tuple[int, int, memoryview]]) -> None:
        for fd, at, view in mine:
            done = 0
            while done < len(view):
                got = os.preadv(fd, [view[done:]], at + done)
                assert got, "the file ends too early"
                done += got

    crowd = [threading.Thread(target=work, args=(jobs[i::2],)) for i in range(2)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()


def ours_into(folder: Path, targets: Targets, limit: int) -> None:
    """`p2pcache.load_into`."""
    p2pcache.load_into(targets, folder, memory_limit=limit)


def ours_copy(folder: Path, targets: Targets, limit: int) -> None:
    """`p2pcache.iter_tensors`, each tensor copied: what an engine does that narrows by itself."""
    for name, tensor in p2pcache.iter_tensors(folder, memory="mapped"):
        targets[name].copy_(tensor)


def ours_private_copy(folder: Path, targets: Targets, limit: int) -> None:
    """The same from tensors that own their memory."""
    for name, tensor in p2pcache.iter_tensors(folder, memory="private", memory_limit=limit):
        targets[name].copy_(tensor)


def safetensors_copy(folder: Path, targets: Targets, _: int) -> None:
    """`safetensors.safe_open`: a mapping, each tensor copied."""
    for path in shards(folder):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                targets[name].copy_(file.get_tensor(name))


def runai(folder: Path, targets: Targets, _: int) -> None:
    """Run:ai's streamer as it comes."""
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in shards(folder)], device="cpu")
        for name, tensor in streamer.get_tensors():
            targets[name].copy_(tensor)


def runai_tuned(folder: Path, targets: Targets, _: int) -> None:
    """Run:ai's streamer with what measured best: buffered reads, a small ring, borrowed tensors."""
    os.environ |= {
        "RUNAI_STREAMER_CONCURRENCY": "16",
        "RUNAI_STREAMER_FS_STRATEGY": "sync_buffered",
        "RUNAI_STREAMER_MEMORY_LIMIT": str(512 * MiB),
    }
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in shards(folder)], device="cpu", owned=False)
        for name, tensor in streamer.get_tensors():
            targets[name].copy_(tensor)


def fast(folder: Path, targets: Targets, _: int) -> None:
    """The fastsafetensors loader without GPUDirect, on the host."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [str(path) for path in shards(folder)]})
    buffer = loader.copy_files_to_device()
    for name in loader.get_keys():
        targets[name].copy_(buffer.get_tensor(name))
    buffer.close()
    loader.close()


def touch(found: Targets) -> Targets:
    """Read a byte of each page, as whoever uses the tensors does."""
    for tensor in found.values():
        tensor.reshape(-1).view(torch.uint8)[::PAGE_BYTES].sum()
    return found


def ours_load(folder: Path, _: Targets, limit: int) -> Targets:
    """`p2pcache.load` of a directory, mapped as a published one."""
    return touch(p2pcache.load(folder, memory="mapped"))


def ours_private_load(folder: Path, _: Targets, limit: int) -> Targets:
    """`p2pcache.load` into memory of the tensors' own."""
    return touch(p2pcache.load(folder, memory="private", memory_limit=limit))


def safetensors_load(folder: Path, _: Targets, limit: int) -> Targets:
    """`safetensors.torch.load_file` of each shard."""
    from safetensors.torch import load_file

    found: Targets = {}
    for path in shards(folder):
        found |= load_file(path)
    return touch(found)


def ours_tiny(folder: Path, _: Targets, limit: int) -> Targets:
    """`p2pcache.load` of many tensors, of a directory mapped as a published one; nothing is touched."""
    return p2pcache.load(folder, memory="mapped")


def ours_private_tiny(folder: Path, _: Targets, limit: int) -> Targets:
    """The same into memory of the tensors' own."""
    return p2pcache.load(folder, memory="private", memory_limit=limit)


def safetensors_tiny(folder: Path, _: Targets, limit: int) -> Targets:
    """The same by `safetensors.torch.load_file`."""
    from safetensors.torch import load_file

    return {name: tensor for path in shards(folder) for name, tensor in load_file(path).items()}


def ours_pretrained(folder: Path, _: Targets, limit: int) -> Targets:
    """`p2pcache.from_pretrained`."""
    from transformers import AutoModelForCausalLM

    made = p2pcache.from_pretrained(folder, AutoModelForCausalLM, dtype="auto")
    return touch(dict(made.state_dict()))


def transformers_pretrained(folder: Path, _: Targets, limit: int) -> Targets:
    """transformers' own way."""
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return touch(dict(made.state_dict()))


Contestant = Callable[[Path, Targets, int], Targets | None]
# The first of each group is what the others are compared with.
GROUPS: dict[str, dict[str, Contestant]] = {
    "fill": {
        "floor": floor,
        "p2pcache-into": ours_into,
        "p2pcache-copy": ours_copy,
        "p2pcache-copy-private": ours_private_copy,
        "safetensors": safetensors_copy,
        "runai": runai,
        "runai-tuned": runai_tuned,
        "fastsafetensors": fast,
    },
    "load": {
        "safetensors-load": safetensors_load,
        "p2pcache-load": ours_load,
        "p2pcache-load-private": ours_private_load,
    },
    "tiny": {
        "safetensors-tiny": safetensors_tiny,
        "p2pcache-tiny": ours_tiny,
        "p2pcache-tiny-private": ours_private_tiny,
    },
    "pretrained": {
        "transformers": transformers_pretrained,
        "p2pcache-pretrained": ours_pretrained,
    },
}
CONTESTANTS = {name: call for group in GROUPS.values() for name, call in group.items()}


def first_tensor_s(name: str, folder: Path) -> float:
    """How soon `iter_tensors` gives its first tensor, for the row of `p2pcache.load`; 0: not asked."""
    if name != "p2pcache-load":
        return 0.0
    began = time.perf_counter()
    with p2pcache.iter_tensors(folder, memory="mapped") as stream:
        next(stream)
        return time.perf_counter() - began


def main() -> None:
    name, folder, limit, check = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if name.startswith("runai"):
        import runai_model_streamer  # noqa: F401  # its import isn't the load
    if name == "fastsafetensors":
        import fastsafetensors  # noqa: F401
    if name.startswith("p2pcache"):
        p2pcache.load  # noqa: B018  # neither is ours
        p2pcache.from_pretrained  # noqa: B018
    if name in GROUPS["pretrained"]:
        from transformers import LlamaForCausalLM  # noqa: F401  # nor is transformers'
    targets = spaces(folder) if name in GROUPS["fill"] else {}
    # A full look through all that torch's import left takes 0.1 s, half of a load. It would meet those whose
    # own import brought Python near its next one.
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    targets = CONTESTANTS[name](folder, targets, limit) or targets
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        json.dumps({"seconds": seconds, "cpu_s": cpu_s, "first_s": first_tensor_s(name, folder)}),
        flush=True,
    )
    digest = ""
    if check == "check":
        hasher: Any = blake3(max_threads=blake3.AUTO)
        for tensor_name in sorted(targets):
            hasher.update(memoryview(targets[tensor_name].reshape(-1).view(torch.uint8).numpy()))
        digest = hasher.hexdigest()
    print(json.dumps({"digest": digest}), flush=True)


if __name__ == "__main__":
    main()

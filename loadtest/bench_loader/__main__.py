"""Weights from warm page cache into host tensors, beside every rival and the bare reads: `make bench-loader`.

The model has the shapes of a Llama of 1.1 billion parameters in bf16: 2.2 GB, 201 tensors, 4 shards.
Every contestant runs in a process of its own; only the load is timed. They take turns, so that all meet
the same machine, and the median counts. Each row is compared with the first one of its group. In the first
turn the bytes are compared, too.

"fill" fills the same tensors, allocated and touched beforehand. Its floor is two threads in `preadv`, 8 MiB a
call, that do nothing else. "load" gives tensors, a byte of each page touched, beside safetensors' own mapping.
"tiny" gives 100,000 tensors of 128 bytes: what a tensor costs by itself. "pretrained" makes transformers' model,
beside its own way.

    python -m loadtest.bench_loader --turns 5 --json FILE
    python -m loadtest.bench_loader --group load --torch-threads 1

Exit code: 0 done, 1 somebody brought wrong bytes, 2 can't run here.
"""

import argparse
import importlib.util
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from loadtest.bench_gpu.ends import forget
from loadtest.bench_loader.ends import CONTESTANTS, GROUPS
from loadtest.kit.flags import count, out_file

GB = 1e9
MiB = 1 << 20
ENDS = [sys.executable, "-m", "loadtest.bench_loader.ends"]
HIDDEN, INNER, KEYS, WORDS, LAYERS, HEAD = 2048, 5632, 256, 32000, 22, 64
NEEDS = {
    "runai": "runai_model_streamer",
    "runai-tuned": "runai_model_streamer",
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
}
SAMPLE_S = 0.005  # of memory: the shortest load takes about 0.4 s


class Run(NamedTuple):
    """One load: wall clock, CPU time, the most anonymous memory above that before it."""

    seconds: float
    cpu_s: float
    anon_mib: float
    first_s: float = 0.0  # of `p2pcache.load`: how soon a stream gives its first tensor


def make_llama(folder: Path, shards: int, layers: int = LAYERS) -> int:
    """Write the model; returns its bytes."""
    shapes = {"model.embed_tokens.weight": (WORDS, HIDDEN), "lm_head.weight": (WORDS, HIDDEN),
              "model.norm.weight": (HIDDEN,)}  # fmt: skip
    for i in range(layers):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qo"}
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (KEYS, HIDDEN) for p in "kv"}
        shapes |= {f"{layer}.mlp.{p}_proj.weight": (INNER, HIDDEN) for p in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER)}
        shapes |= {f"{layer}.{p}_layernorm.weight": (HIDDEN,) for p in ("input", "post_attention")}
    dice = torch.Generator().manual_seed(1)
    names = list(shapes)
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(shards):
        path = folder / f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        tensors = {
            name: torch.randint(-(1 << 62), 1 << 62, (_words(shapes[name]),), generator=dice)
            .view(torch.bfloat16)
            .reshape(shapes[name])
            for name in mine
        }
        save_file(tensors, path)
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map |= dict.fromkeys(mine, path.name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": WORDS, "num_hidden_layers": layers,
        "num_attention_heads": HIDDEN // HEAD, "num_key_value_heads": KEYS // HEAD,
    }))  # fmt: skip
    return total


def make_tiny(folder: Path, tensors: int) -> int:
    """Write a model of nothing but scales, in four files; returns its bytes."""
    scale = torch.arange(64, dtype=torch.int16).view(torch.bfloat16)
    for number in range(4):
        names = [
            f"layers.{i // 256}.experts.{i % 256}.w{number}.scale" for i in range(tensors // 4)
        ]
        save_file({name: scale.clone() for name in names}, folder / f"model-{number}.safetensors")
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _words(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count * 2 // 8


def run(name: str, folder: Path, limit: int, *, check: bool, cold: bool = False) -> tuple[Run, str]:
    """One load in a new process; the digest of what it brought, where asked for.

    Args:
        name: of the contestant.
        folder: of the model.
        limit: of the loader's own memory, in bytes.
        check: tell the digest.
        cold: out of the page cache with the files first, as far as the kernel obeys.

    Raises:
        RuntimeError: the contestant failed.
    """
    process = subprocess.Popen(
        [*ENDS, name, str(folder), str(limit), "check" if check else "no"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _ready(process)
        if cold:
            forget(sorted(folder.glob("*.safetensors")))
        before = peak = _anon(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(SAMPLE_S):
                peak = max(peak, _anon(process.pid))
        facts = json.loads(process.stdout.readline() or "{}")
        digest = json.loads(process.stdout.readline() or "{}").get("digest", "")
        if not facts:
            raise RuntimeError(f"{name}: {process.communicate()[1][-2000:]}")
        anon_mib = (peak - before) / MiB
        return Run(facts["seconds"], facts["cpu_s"], anon_mib, facts["first_s"]), digest
    finally:
        process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line == "ready\n":
            return
    raise RuntimeError(process.communicate()[1][-2000:])


def _anon(pid: int) -> int:
    """Anonymous memory of a process, bytes, and shared anonymous memory with it."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = sum(int(line.split()[1]) for line in status.splitlines()
              if line.startswith(("RssAnon:", "RssShmem:")))  # fmt: skip
    return kib * 1024


def measure(
    folder: Path, names: list[str], turns: int, limit: int, *, cold: bool = False
) -> tuple[dict[str, list[Run]], list[str]]:
    """All contestants of a group, in turns; who brought other bytes than the first one."""
    runs: dict[str, list[Run]] = {name: [] for name in names}
    digests: dict[str, str] = {}
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found, digest = run(name, folder, limit, check=turn == 0, cold=cold)
            runs[name].append(found)
            if digest:
                digests[name] = digest
            print(f"  turn {turn + 1} {name:16} {found.seconds:6.2f} s", file=sys.stderr)
    return runs, [name for name in names if digests[name] != digests[names[0]]]


def table(runs: dict[str, list[Run]], size: int) -> list[dict[str, Any]]:
    """Medians; `of_first` is the median over turns of the first contestant's time by this one's, within the turn."""
    rows = []
    first = next(iter(runs.values()))
    for name, found in runs.items():
        ratios = [f.seconds / r.seconds for f, r in zip(first, found, strict=True)]
        seconds = statistics.median(r.seconds for r in found)
        rows.append({
            "loader": name,
            "gb_per_s": round(size / GB / seconds, 2),
            "of_first": round(statistics.median(ratios), 3),
            "of_first_best": round(max(ratios), 3),
            "of_first_worst": round(min(ratios), 3),
            "cpu_s_per_gb": round(statistics.median(r.cpu_s for r in found) / (size / GB), 2),
            "anon_mib": round(max(r.anon_mib for r in found)),
            "first_tensor_ms": round(1000 * statistics.median(r.first_s for r in found), 1),
        })  # fmt: skip
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=count, default=5)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--layers", type=int, default=LAYERS, help="22 make 2.2 GB")
    parser.add_argument("--memory-limit-mib", type=int, default=64)
    parser.add_argument("--group", nargs="*", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--cold", action="store_true", help="from the disk, not the page cache")
    parser.add_argument("--tiny", type=count, default=100_000, help="tensors of that group")
    parser.add_argument("--torch-threads", type=count, help="as tensor-parallel workers run: 1")
    parser.add_argument("--dir", type=Path, help="a model made here before is used again")
    parser.add_argument("--json", type=out_file)
    args = parser.parse_args()
    if args.torch_threads:
        os.environ["OMP_NUM_THREADS"] = str(args.torch_threads)
    absent = [n for n in NEEDS if importlib.util.find_spec(NEEDS[n]) is None]
    results: dict[str, list[dict[str, Any]]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="p2pcache-bench-") as temporary:
        folder = args.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        made = sorted(folder.glob("*.safetensors"))
        size = (
            sum(p.stat().st_size for p in made)
            if made
            else make_llama(folder, args.shards, args.layers)
        )
        for path in folder.glob("*.safetensors"):  # warm
            path.read_bytes()
        for group in args.group:
            first, *others = GROUPS[group]
            names = [first, *(n for n in others if n in args.only and n not in absent)]
            for name in set(others) & set(args.only) & set(absent):
                print(f"{name} is not installed; pip install '.[loader-rivals]'", file=sys.stderr)
            place, nbytes = folder, size
            if group == "tiny":
                place = Path(temporary) / "tiny"
                place.mkdir()
                nbytes = make_tiny(place, args.tiny)
            runs, bad = measure(
                place, names, args.turns, args.memory_limit_mib * MiB, cold=args.cold
            )
            results[group] = table(runs, nbytes)
            wrong += bad
            show(group, results[group])
    print(f"{size / GB:.2f} GB, {args.turns} turns, memory limit {args.memory_limit_mib} MiB, "
          f"torch threads {args.torch_threads or 'as it likes'}, {time.strftime('%Y-%m-%d')}")  # fmt: skip
    if args.json:
        args.json.write_text(
            json.dumps({"bytes": size, "turns": args.turns, "groups": results}, indent=1)
        )
    for name in wrong:
        print(f"WRONG: {name} brought other bytes than the first of its group")
    return 1 if wrong else 0


def show(group: str, rows: list[dict[str, Any]]) -> None:
    """Print a group's table."""
    print(
        f"{group + ':':22} {'GB/s':>6} {'of first':>9} {'(worst-best)':>14} {'CPU-s/GB':>9} {'anon MiB':>9}"
    )
    for r in rows:
        spread = f"({r['of_first_worst']:.2f}-{r['of_first_best']:.2f})"
        soon = f"  first tensor {r['first_tensor_ms']} ms" if r["first_tensor_ms"] else ""
        print(f"{r['loader']:22} {r['gb_per_s']:6.2f} {r['of_first']:9.3f} {spread:>14} "
              f"{r['cpu_s_per_gb']:9.2f} {r['anon_mib']:9}{soon}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

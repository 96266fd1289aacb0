"""The memory limit, measured: what a load adds to a process' anonymous memory, in a process of its own."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

MiB = 1 << 20
PROMISED_BYTES = 64 * MiB  # beyond the limit

PROBE = """
import gc, json, sys, threading, time
import numpy as np
import p2pcache

how, folder, limits = sys.argv[1], sys.argv[2], [int(text) for text in sys.argv[3:]]

def anonymous_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

def watch():
    while not over.wait(0.0005):
        seen.append(anonymous_bytes())

def load(limit):
    if how == "load":
        return sum(each.nbytes for each in p2pcache.load(folder, framework="np", memory_limit=limit).values())
    if how == "iter":
        for _, tensor in p2pcache.iter_tensors(folder, framework="np", memory_limit=limit):
            tensor.sum()  # held until the next one is there, as in any loop
    if how in ("into", "converted"):
        p2pcache.load_into(targets, folder, memory_limit=limit)
    return 0

dtype = {"into": np.uint8, "converted": np.uint16}.get(how)
with p2pcache.safe_open(folder, "np") as model:
    targets = {name: np.ones(model.get_slice(name).get_shape(), dtype) for name in model.keys()} if dtype else {}
for limit in limits:
    gc.collect()
    over, before = threading.Event(), anonymous_bytes()
    seen = [before]
    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = load(limit)
    over.set()
    watcher.join()
    print(json.dumps([limit, max(seen) - before - kept]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 300 MB of tensors of 24 MiB at most; the files are holes."""
    root = tmp_path_factory.mktemp("model")
    dice = random.Random(2)
    for number in range(2):
        table, position = {}, 0
        for i in range(12):
            size = dice.randrange(MiB // 4, 24 * MiB)
            table[f"layers.{number}.{i}"] = {
                "dtype": "U8", "shape": [size], "data_offsets": [position, position + size],
            }  # fmt: skip
            position += size
        header = json.dumps(table).encode()
        path = root / f"model-{number}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        with path.open("ab") as file:
            file.truncate(8 + len(header) + position)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("how", ["iter", "into", "converted", "load"])
def test_no_load_holds_more_than_the_limit_and_64_mib(folder: Path, how: str) -> None:
    limits = [24, 64, 160] if how == "iter" else [24]
    words = [how, str(folder), *(str(limit * MiB) for limit in limits)]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(limits)
    for limit, peak in told:
        assert peak <= limit + PROMISED_BYTES, f"{peak / MiB:.1f} MiB at {limit / MiB:.0f}"

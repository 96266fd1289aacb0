"""`python -m loadtest.fullcache`: what a node pays for a cache of very many models.

The cache is built in memory, without waiting for a disk; with `--dir` it stays, and is used again. An agent's start is
the time from the exec of its command until its API answers. `ls` is the whole command. A pull that needs room is asked
for when the cache's quota is full; what goes for it goes in its "manifest" phase, and its first byte comes after that.
Each pull is of a model of its own, by an agent of its own.
"""

import argparse
import contextlib
import json
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from blake3 import blake3

from loadtest.kit.cluster import Agent, clean_environ, run_command
from loadtest.kit.daemons import P2PCACHE, StartError, exit_on_signals
from loadtest.kit.flags import count, duration, out_file
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, encode, make_file, make_manifest
from p2pcache.core.units import parse_duration
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.models.store import Store

MEMORY = "/dev/shm"
FILE_BYTES = 4096  # a block: what a small file takes
START_S = 2.0  # until an agent answers, at most
LS_S = 0.3  # of a whole command
FETCH_S = 1.0  # from the question to the first byte of a pull that needs room
NEEDED = 10  # models that must go for the pull
SERVED_S = 5.0  # from an agent's first answer until it serves every model
BEFORE_BYTES = (
    "resolve",
    "manifest",
    "local",
    "first_byte",
)  # phases of a pull up to its first byte


def build(root: Path, models: int, files: int) -> None:
    """Fill a cache with models of files of their own."""
    dice = random.Random(1)
    nothing = mock.patch.multiple("os", fsync=lambda _fd: None, fdatasync=lambda _fd: None)
    with nothing, contextlib.closing(Store.open(root, min_free_bytes=0)) as store:
        for number in range(models):
            contents = {f"part-{n:03}.bin": dice.randbytes(FILE_BYTES) for n in range(files)}
            manifest = make_manifest(
                make_file(path, [Chunk(FILE_BYTES, blake3(data).digest())])
                for path, data in contents.items()
            )
            layout = Layout(manifest)
            model = store.add_model(layout, encode(manifest), reserve=False)
            for chunk, data in _chunks(layout, contents):
                writer = model.begin(chunk)
                assert writer is not None
                writer.put(0, memoryview(data))
                writer.update(memoryview(data))
                assert writer.finish()
            model.publish(Ref.parse(f"team/model-{number:04}:v1"), 1)
    with contextlib.closing(sqlite3.connect(root / "agent.db")) as records:
        records.execute(
            "update models set last_used = last_used - 86400"
        )  # what was just used stays
        records.commit()


def _chunks(layout: Layout, contents: dict[str, bytes]) -> Iterator[tuple[int, bytes]]:
    data = {layout.blob_of_file[path]: found for path, found in contents.items()}
    for chunk in range(layout.chunk_count):
        yield chunk, data[layout.first_place(chunk).blob]


def measure(home: Path, turns: int, files: int, up_s: float) -> dict[str, Any]:
    """Start agents, list, and pull what needs room after `up_s` seconds."""
    environ = clean_environ(home)
    origin = home / "origin"
    origin.mkdir(exist_ok=True)
    flags = ["--listen", "127.0.0.1:0", "--origin", f"file://{origin}", "--min-free-bytes", "0"]
    starts, cpu, first, later = [], [], [], []
    for _ in range(turns):
        with _agent(home, flags, environ) as (agent, took):
            starts.append(took)
            cpu.append(agent.cpu_s())
            first.append(_ls(agent, environ))
            time.sleep(SERVED_S)
            later += [_ls(agent, environ) for _ in range(3)]
    pulls = [_pull(home, flags, environ, files, up_s) for _ in range(turns)]
    return {
        "start_s": starts, "start_cpu_s": cpu, "ls_first_s": first, "ls_s": later,
        "first_byte_s": [pull["first_byte_s"] for pull in pulls], "pulls": pulls,
    }  # fmt: skip


def _pull(
    home: Path, flags: list[str], environ: dict[str, str], files: int, up_s: float
) -> dict[str, Any]:
    """Pull a new model, for which others must go."""
    ref = f"big/new:v{random.getrandbits(32)}"
    new = home / "new"
    new.mkdir(exist_ok=True)
    (new / "weights.bin").write_bytes(random.randbytes(NEEDED * files * FILE_BYTES))
    run_command("push", str(new), ref, *flags[2:4], environ=environ)
    with contextlib.closing(Store.open(home / "cache", min_free_bytes=0)) as store:
        filled = store.usage().filled_bytes
    # Just below the high mark, so that nothing goes before the pull asks for it.
    flags = [*flags, "--cache-quota", str(filled), "--cache-high", "1", "--cache-low", "0.99"]
    with _agent(home, flags, environ) as (agent, _):
        time.sleep(up_s)
        before, used = _remote(agent), agent.cpu_s()
        began = time.monotonic()
        done = list(agent.client.pull(ref))[-1]
        wall, used = time.monotonic() - began, agent.cpu_s() - used
        gone = _remote(agent) - before
    phases = {str(one["phase"]): float(one["seconds"]) for one in done["report"]["phases"]}
    return {
        "first_byte_s": sum(phases.get(name, 0.0) for name in BEFORE_BYTES),
        "pull_s": wall, "cpu_s": used, "phases": phases, "evicted": gone,
    }  # fmt: skip


def _remote(agent: Agent) -> int:
    """How many models it knows that were evicted."""
    return sum(bool(row["remote"]) for row in agent.client.models())


@contextlib.contextmanager
def _agent(home: Path, flags: list[str], environ: dict[str, str]) -> Iterator[tuple[Agent, float]]:
    """A running agent, and the seconds from its exec until it answered."""
    agent = Agent("agent", home, flags, environ=environ)
    began = time.monotonic()
    agent.start(wait=False)
    try:
        while not agent.answers():
            if not agent.alive or time.monotonic() - began > 60:
                raise StartError(agent.tail())
            time.sleep(0.01)
        yield agent, time.monotonic() - began
    finally:
        agent.stop()


def _ls(agent: Agent, environ: dict[str, str]) -> float:
    began = time.monotonic()
    subprocess.run(
        [*P2PCACHE, "ls", "--agent", agent.url], env=environ, stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began


def _told(result: dict[str, Any]) -> bool:
    """Print a result; returns whether it is as it must be."""
    rows = [
        ("agent starts", result["start_s"], START_S), ("its CPU time", result["start_cpu_s"], None),
        ("ls at once", result["ls_first_s"], None),
        ("ls", result["ls_s"], LS_S), ("pull's first byte", result["first_byte_s"], FETCH_S),
    ]  # fmt: skip
    good = True
    for what, seconds, limit in rows:
        middle = statistics.median(seconds)
        good = good and (limit is None or middle < limit)
        goal = f" (goal {limit:g})" if limit is not None else ""
        print(
            f"{what:18} {middle:.2f} s{goal}, {min(seconds):.2f}-{max(seconds):.2f} in {len(seconds)}"
        )
    for pull in result["pulls"]:
        print(
            f"the pull took {pull['pull_s']:.2f} s, {pull['cpu_s']:.2f} s of CPU time, {pull['evicted']} models went; "
            f"phases: {pull['phases']}"
        )
    return good


def main() -> int:
    """Build the cache, measure, print. Exit code 0: as it must be; 1: too slow; 2: can't run here."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fullcache", description=__doc__)
    add = parser.add_argument
    add("--models", type=count, default=1000, help="models [1000]")
    add("--files", type=count, default=200, help="files of each, 4 KiB [200]")
    add("--turns", type=count, default=3, help="starts of the agent, and pulls [3]")
    add(
        "--up",
        type=duration,
        default=f"{SERVED_S:g}s",
        help="for how long an agent is up before a pull [5s]",
    )
    add("--dir", type=Path, help="where the cache is, or is built, to stay there")
    add("--json", type=out_file, metavar="FILE", help="write all numbers here")
    options = parser.parse_args()
    exit_on_signals()
    home = options.dir or Path(tempfile.mkdtemp(prefix="p2pfull-", dir=MEMORY))
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "cache").exists():
            build(home / "building", options.models, options.files)
            (home / "building").rename(home / "cache")
        result = measure(home, options.turns, options.files, parse_duration(options.up))
    except (StartError, P2PCacheError, OSError) as error:
        print(f"fullcache: {error}", file=sys.stderr)
        return 2
    finally:
        if options.dir is None:
            shutil.rmtree(home, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if _told(result) else 1


if __name__ == "__main__":
    sys.exit(main())

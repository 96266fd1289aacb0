"""The simulator with its hot half compiled: 10,000 nodes take minutes instead of half an hour.

`python -m loadtest.compiled storm --nodes 10000 --chunks 256` and so on, as `python -m p2pcache.sim`. What is
compiled (by mypyc, which comes with mypy) is a copy of the very code that the agents run; before the storm that
was asked for, a small one runs plain and compiled, and must come out the same decision for decision.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "compiled"
CORE = (
    "bitset",
    "download/bridge_timer",
    "download/in_flight",
    "download/piece_picker",
    "download/requester",
    "leases/lease_book",
    "leases/lost_runs",
    "leases/read_concurrency",
    "leases/reader_choice",
    "leases/slow_readers",
    "membership/roster",
    "membership/sampled_set",
    "origin/origin_reader",
    "origin/owners",
    "origin/without_tracker",
    "peers/peer",
    "peers/peer_book",
    "peers/rarity",
    "peers/timing",
    "racks/bridges",
    "run_log",
    "scheduler/reports",
    "scheduler/scheduler",
    "swarm/commands",
    "swarm/counters",
    "swarm/events",
    "swarm/run_states",
    "upload/slow_receivers",
    "upload/upload_queue",
)
SIM = (
    "cluster/cluster",
    "cluster/environment",
    "cluster/network",
    "cluster/node",
    "cluster/node_reads",
    "cluster/node_state",
    "cluster/node_uploads",
    "cluster/world",
)
SAMPLE = ("storm", "--nodes", "40", "--chunks", "64", "--slow", "0.1", "--crash", "0.1")


def main(arguments: list[str]) -> int:
    """Build what isn't built, compare, run."""
    with _alone():
        stamp = FOLDER / ".built-from"
        source = _digest()
        if not stamp.is_file() or stamp.read_text() != source:
            _build()
            stamp.write_text(source)
        plain, compiled = (_trace(folder) for folder in (ROOT, FOLDER))
    if plain != compiled:
        print(f"the compiled simulator decides otherwise: {compiled}, not {plain}", file=sys.stderr)
        return 1
    return _simulate(FOLDER, arguments).returncode


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Another one that is begun meanwhile waits, and finds it built."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest() -> str:
    found = hashlib.sha256()
    for path in sorted((ROOT / "p2pcache").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _build() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shutil.copytree(
        ROOT / "p2pcache", FOLDER / "p2pcache", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", FOLDER)
    paths = [
        f"p2pcache/{room}/{name}.py"
        for room, some in (("core", CORE), ("sim", SIM))
        for name in some
    ]
    mypyc = Path(sys.executable).parent / "mypyc"
    done = subprocess.run([mypyc, *paths], cwd=FOLDER, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"mypyc (it needs gcc and Python's headers):\n{done.stdout}{done.stderr}")


def _trace(folder: Path) -> str:
    """What a small storm decided."""
    where = FOLDER / "sample.json"
    _simulate(folder, [*SAMPLE, "--json", str(where)], quiet=True)
    return str(json.loads(where.read_text())["trace"])


def _simulate(
    folder: Path, arguments: list[str], *, quiet: bool = False
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        # -P: or the working directory's own p2pcache comes first
        [sys.executable, "-P", "-m", "p2pcache.sim", *arguments], check=quiet,
        stdout=subprocess.DEVNULL if quiet else None, env=os.environ | {"PYTHONPATH": str(folder)},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

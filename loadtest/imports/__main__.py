"""`python -m loadtest.imports`: a model is imported from each kind of source, and fetched by that one's usual client.

Both write to the same disk; ours proves every byte, and makes it durable. Memory is the highest that the agent's, or
the client's, process had.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtest.imports.places import KINDS, Place, missing, settings_of, spent
from loadtest.kit.cluster import Agent, Cluster, last_event
from loadtest.kit.daemons import P2PCACHE, StartError, exit_on_signals, wait_until
from loadtest.kit.flags import count, size
from loadtest.kit.models import check_tree, make_model, total_bytes
from p2pcache.core.units import parse_size

REF = "acme/m:v1"
LIMIT_S = 180.0  # an import that takes longer hangs
MiB = 1 << 20
KILLED_AT = 0.6  # of the bytes: of a file of 1 GiB, 512 MiB are durable then
TURNS = """| source | import | MB/s | memory | usual client | | MB/s | memory |
|---|---|---|---|---|---|---|---|"""
KILLED = """| source | there when the agent was killed | read by the second import | of all |
|---|---|---|---|"""


class Row(NamedTuple):
    """One run of ours, or of the usual client."""

    seconds: float
    memory: int


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: all bytes right; 1: not; 2: can't run here."""
    parser = argparse.ArgumentParser(prog="loadtest.imports", description=__doc__)
    parser.add_argument("--size", type=size, default="1GiB", help="of the model")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--turns", type=count, default=1)
    parser.add_argument(
        "--killed",
        action="store_true",
        help="kill the agent in the middle instead, and import again",
    )
    parser.add_argument(
        "--folder", type=Path, help="where the files lie; it needs three times the size"
    )
    options = parser.parse_args(argv)
    exit_on_signals()
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root = Path(name)
        root.chmod(0o755)
        model = make_model(
            root / "lake/m", parse_size(options.size), shards=1 if options.killed else 4
        )
        print(KILLED if options.killed else TURNS)
        for kind in kinds:
            if why := missing(kind):
                print(f"| `{kind}` | {why} |", flush=True)
                continue
            try:
                _kind(kind, root, model, 0 if options.killed else options.turns)
            except (StartError, AssertionError) as error:
                print(f"imports: {kind}: {error}", file=sys.stderr)
                return 2 if isinstance(error, StartError) else 1
    return 0


def _kind(kind: str, root: Path, model: Path, turns: int) -> None:
    """Turns of both, or without turns an import that is killed."""
    home = root / kind
    home.mkdir(mode=0o755)
    ours, theirs = [], []
    with KINDS[kind](home, model) as place:
        if not turns:
            print(f"| `{kind}` | {_killed(place, home, model)} |", flush=True)
        for _ in range(turns):
            ours.append(_imported(place, home, model))
            if place.client:
                theirs.append(_fetched(place, home))
    shutil.rmtree(home)
    if not turns:
        return
    total = total_bytes(model)
    cells = [f"`{kind}`", _told(ours, total), place.client or "not installed"]
    print(f"| {' | '.join(cells)} | {_told(theirs, total) if theirs else ' | | '} |", flush=True)


def _imported(place: Place, home: Path, model: Path) -> Row:
    with _importer(place, home) as cluster:
        began = time.monotonic()
        cluster.run("import", place.url, REF, limit_s=LIMIT_S)
        seconds = time.monotonic() - began
        memory = _highest(cluster.agents[0].pid)
        _check(cluster, model)
    return Row(seconds, memory)


def _killed(place: Place, home: Path, model: Path) -> str:
    """Kill the agent in the middle of an import, start it, and import again."""
    total = total_bytes(model)
    with _importer(place, home) as cluster:
        agent = cluster.agents[0]
        words = [*P2PCACHE, "import", place.url, REF, "--quiet"]
        environ = cluster.environ | {"P2PCACHE_AGENT": agent.url}
        first = subprocess.Popen(
            words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: _kept(agent) >= KILLED_AT * total, LIMIT_S, 0.005)
        finally:
            agent.kill()
            first.kill()
            first.wait()
        there = _kept(agent)
        agent.start()
        done = last_event(cluster.run("import", place.url, REF, "--json", limit_s=LIMIT_S).stdout)
        _check(cluster, model)
    return f"{there / MiB:.0f} MiB | {done['bytes_read'] / MiB:.0f} MiB | {total / MiB:.0f} MiB"


def _kept(agent: Agent) -> int:
    return sum(path.stat().st_size for path in (agent.cache_dir / "imports").rglob("*.part"))


@contextmanager
def _importer(place: Place, home: Path) -> Iterator[Cluster]:
    """An agent that may import from there."""
    (home / "origin").mkdir()
    origin = (home / "origin").as_uri()
    cluster = Cluster(origin, agents=1, tracker=False, environ=dict(place.environ), folder=home)
    (cluster.root / "config.toml").write_text(settings_of(place))
    with cluster:
        yield cluster
    shutil.rmtree(home / "origin")


def _check(cluster: Cluster, model: Path) -> None:
    done = last_event(cluster.run("pull", REF, "--json", limit_s=LIMIT_S).stdout)
    assert done["bytes_origin"] == 0, done
    check_tree(cluster.agents[0].tree(str(done["path"])), model)


def _fetched(place: Place, home: Path) -> Row:
    target = home / "fetched"
    target.mkdir()
    environ: Mapping[str, str] = os.environ | place.environ
    began = time.monotonic()
    memory, code = spent(place.command(target), environ, LIMIT_S)
    seconds = time.monotonic() - began
    assert code == 0, f"{place.client} ended with {code}"
    shutil.rmtree(target)
    return Row(seconds, memory)


def _highest(pid: int) -> int:
    """The highest memory that a process has had (VmHWM), in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")


def _told(rows: list[Row], total: int) -> str:
    best = min(row.seconds for row in rows)
    return (
        f"{best:.1f} s | {total / best / 1e6:.0f} | {max(row.memory for row in rows) / MiB:.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())

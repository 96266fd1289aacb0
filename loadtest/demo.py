"""`make demo`: the main job on one machine, with real parts and a table at the end."""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Cluster, last_event
from loadtest.kit.daemons import StartError, exit_on_signals
from loadtest.kit.models import check_tree, files_of, make_model
from loadtest.kit.seaweed import Seaweed
from p2pcache.core.units import format_bytes, parse_size

REF = "demo/llama:v1"
NODES = 4
SHARDS = 4
NEEDED_FACTOR = NODES + 3  # source, storage with its slack, and a copy per node
STOP_S = 3  # an idle agent ends within a second
PULL_S = 150.0  # of the three minutes that the demo may take


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0: every file on every node equals the source."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    size = parse_size(options.size)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < size * NEEDED_FACTOR:
        print(
            f"demo: {tempfile.gettempdir()} has {format_bytes(free)} free, {format_bytes(size * NEEDED_FACTOR)} "
            "are needed; set TMPDIR to a larger disk, or try --size 200MB",
            file=sys.stderr,
        )
        return 1
    root = Path(tempfile.mkdtemp(prefix="p2pd-"))
    demo = Demo(root, size, keep=options.keep)
    try:
        demo.run()
    except (StartError, RuntimeError, AssertionError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        demo.stop()
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; stopping everything", file=sys.stderr)
        demo.stop()
        return 130
    except BaseException:
        demo.stop()
        raise
    if options.keep:
        demo.say_what_to_try()
    else:
        demo.stop()
        print(
            "\nStopped and removed everything. `make demo KEEP=1` leaves it running to play with."
        )
    return 0


class Demo:
    """The parts of the demo and its steps."""

    def __init__(self, root: Path, size_bytes: int, *, keep: bool) -> None:
        """Describe the parts; nothing runs yet."""
        self.root = root
        self._size = size_bytes
        leash = () if keep or shutil.which("setpriv") is None else ("setpriv", "--pdeathsig", "KILL", "--")  # fmt: skip
        self._s3 = Seaweed(root / "s3", prefix=leash)
        (root / "s3").mkdir()
        self._cluster = Cluster(self._s3.url(), agents=NODES, environ=self._s3.env(),
                                leash=not keep, folder=root)  # fmt: skip
        self._source = root / "source"

    def run(self) -> None:
        """All steps, each announced."""
        _step("starting an S3 server (SeaweedFS)", self._s3.start)
        _step(f"starting a tracker and {NODES} agents", self._cluster.start)
        _step(f"making a model: {SHARDS} shards, {format_bytes(self._size)}", self._make)
        _step("p2pcache push, straight to S3", self._push)
        before = self._s3.counters().sent
        done = _step(f"p2pcache pull on {NODES} nodes at once", self._pull)
        read = self._s3.counters().sent - before
        files = _step(
            "comparing every file with the source, byte for byte", lambda: self._check(done)
        )
        self._table(done, files, read)

    def stop(self) -> None:
        """Stop every part and remove all files."""
        self._cluster.stop()
        self._s3.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _make(self) -> None:
        make_model(self._source, self._size, shards=SHARDS)

    def _push(self) -> None:
        self._cluster.run("push", str(self._source), REF, "--quiet", "--origin", self._s3.url(),
                          agent=None, limit_s=PULL_S)  # fmt: skip

    def _pull(self) -> list[dict[str, Any]]:
        def pull(number: int) -> dict[str, Any]:
            result = self._cluster.run("pull", REF, "--json", agent=number, limit_s=PULL_S)
            return last_event(result.stdout)

        with ThreadPoolExecutor(NODES) as pool:
            return list(pool.map(pull, range(NODES)))

    def _check(self, done: list[dict[str, Any]]) -> list[int]:
        return [check_tree(Path(event["path"]), self._source) for event in done]

    def _table(self, done: list[dict[str, Any]], files: list[int], read: int) -> None:
        count, model = len(files_of(self._source)), done[0]["bytes"]
        print("\nnode      seconds        rate  from peers  from origin  files equal to the source")
        for agent, event, equal in zip(self._cluster.agents, done, files, strict=True):
            seconds = event["seconds"]
            print(
                f"{agent.name:8} {seconds:8.1f} {format_bytes(event['bytes'] / seconds):>9}/s"
                f" {format_bytes(event['bytes_peers']):>11} {format_bytes(event['bytes_origin']):>12}"
                f"  {equal} of {count}"
            )
        print(
            f"\n{NODES} nodes have {format_bytes(NODES * model)} after {max(e['seconds'] for e in done):.1f} s. "
            f"The S3 server counted {format_bytes(read)} sent\nfor a model of {format_bytes(model)}: "
            f"alpha = {read / model:.3f} (each byte leaves storage once: 1.000; without p2pcache: {NODES}.000)."
        )

    def say_what_to_try(self) -> None:
        """What a person can type now, and how to end it."""
        cluster = self._cluster
        settings, stop = self.root / "env.sh", self.root / "stop.sh"
        _write(settings, self._exports())
        pids = [daemon.pid for daemon in (*cluster.agents, cluster.tracker)]
        _write(stop, [
            f"kill {' '.join(map(str, pids))}", f"sleep {STOP_S}", f"kill -9 -{self._s3.pid}",
            f"rm -rf {shlex.quote(str(self.root))}",
        ])  # fmt: skip
        print(
            f"\nThe cluster goes on running. In another shell:\n"
            f"\n  . {settings}"
            f"\n  p2pcache ls                     # what the first node has"
            f"\n  p2pcache nodes                  # who is in the cluster"
            f'\n  ls "$(p2pcache pull {REF})"'
            f"\n  p2pcache push DIR my/model:v1   # then, on the second node:"
            f"\n  p2pcache pull my/model:v1 --agent {cluster.agents[1].url}"
            f"\n  curl -s {cluster.tracker_url}/metrics"
            f"\n\nLogs: {cluster.root}/tracker.log and {cluster.root}/agent-*/agent.log"
            f"\nStop it and remove everything: sh {stop}"
        )

    def _exports(self) -> list[str]:
        """Only what the demo adds to the caller's environment; S3's throw-away keys are among it."""
        added = {k: v for k, v in self._cluster.environ.items() if os.environ.get(k) != v}
        added["P2PCACHE_AGENT"] = self._cluster.agents[0].url
        path = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
        return [path, *(f"export {name}={shlex.quote(value)}" for name, value in added.items())]


def _write(path: Path, lines: list[str]) -> None:
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")


def _step(text: str, act: Callable[[], Any]) -> Any:
    """Announce a step, do it, say how long it took."""
    print(f"  {text:55}", end="", flush=True)
    start = time.monotonic()
    result = act()
    print(f"{time.monotonic() - start:6.1f} s", flush=True)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.demo",
        description="Push a model to a real S3 server and pull it on four nodes at once, on this machine.",
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("--size", default="1GB", help="of the model [1GB]")
    return parser


if __name__ == "__main__":
    sys.exit(main())

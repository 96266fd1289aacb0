"""`python -m loadtest.doors`: what the doors cost their clients.

`s3`: one client reads a model that is here through the S3 door, and the same files from nginx, in turns. `hub`: all
nodes of a storm pull a model at once, then another one by `snapshot_download` through their hub doors (root).
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadtest.kit.cluster import Cluster, free_ports, last_event
from loadtest.kit.daemons import StartError, exit_on_signals, wait_until
from loadtest.kit.flags import count, rate, size
from loadtest.kit.models import check_tree, files_of, make_model, total_bytes
from loadtest.kit.netns import FabricError, Host
from loadtest.kit.nginx import nginx
from loadtest.storm.arena import Arena
from loadtest.storm.plan import Plan
from loadtest.storm.race import busy_share
from p2pcache.core.units import parse_rate, parse_size
from p2pcache.errors import P2PCacheError

HUB = "127.0.0.1:7402"
CLIENT_S = 180.0  # a client that takes longer hangs
BOTO3 = """
import os, sys, time
import boto3
client = boto3.client("s3", config=boto3.session.Config(s3={"addressing_style": "path"}))
folder, keys = sys.argv[1], sys.argv[2:]
began = time.monotonic()
for key in keys:
    bucket, _, name = key.partition("/")
    client.download_file(bucket, name, os.path.join(folder, name.replace("/", "-")))
print(time.monotonic() - began, sum(os.path.getsize(os.path.join(folder, one)) for one in os.listdir(folder)))
"""
RUNAI = """
import sys, time
from runai_model_streamer import SafetensorsStreamer
began = time.monotonic()
with SafetensorsStreamer() as streamer:
    streamer.stream_files([f"s3://{key}" for key in sys.argv[2:]])
    total = sum(tensor.nbytes for _, tensor in streamer.get_tensors())
print(time.monotonic() - began, total)
"""
SNAPSHOT = """
import sys, time
from huggingface_hub import snapshot_download
open(sys.argv[2], "w").close()
sys.stdin.readline()  # all begin at the same time, when each has imported its client
began = time.monotonic()
path = snapshot_download(sys.argv[1])
print(time.monotonic() - began, path)
"""


def main(argv: list[str] | None = None) -> int:
    """Run one of them. Exit code 0: all bytes right; 1: not; 2: can't run here."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    try:
        options.run(options)
    except (
        FabricError,
        StartError,
        RuntimeError,
        P2PCacheError,
        subprocess.SubprocessError,
    ) as error:
        detail = getattr(error, "stderr", "") or ""
        print(f"doors: {error} {str(detail)[-800:]}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"doors: {error}", file=sys.stderr)
        return 1
    return 0


# -- the S3 door ---------------------------------------------------------------------------------


def s3(options: argparse.Namespace) -> None:
    """Each client in turns: nginx, the door, nginx, ..."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        made = make_model(root / "model", parse_size(options.size), shards=4)
        (root / "origin").mkdir()
        door, static = free_ports(2)
        flags = ["--s3-listen", f"127.0.0.1:{door}"]
        origin = (root / "origin").as_uri()
        with Cluster(origin, agents=1, tracker=False, agent_flags=flags) as cluster:
            cluster.run("push", str(made), "acme/big:v1", limit_s=CLIENT_S)
            done = last_event(cluster.run("pull", "acme/big:v1", "--json", limit_s=CLIENT_S).stdout)
            tree = cluster.agents[0].tree(str(done["path"]))
            keys = [
                f"acme/big/v1/{path}" for path in files_of(tree) if path.endswith(".safetensors")
            ]
            with static_copy(root / "nginx", tree, static) as plain:
                servers = plain, cluster.agents[0].pid
                for client, code, python in (
                    ("boto3", BOTO3, options.boto3), ("Run:ai", RUNAI, options.runai),
                ):  # fmt: skip
                    _compare(
                        client, [python, "-c", code], keys, (static, door), servers, options.turns
                    )


def _compare(
    client: str, command: list[str], keys: list[str], ports: tuple[int, int], servers: tuple[int, int],
    turns: int,
) -> None:  # fmt: skip
    """nginx and the door in turns: the client's rate, and the CPU time of each server, which other work alters less.

    Args:
        client: its name.
        command: of the client; a folder and keys follow.
        keys: that it reads.
        ports: of nginx and of the door.
        servers: process ids of nginx and of the agent.
        turns: of each.
    """

    def seconds(port: int) -> float:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            ran = subprocess.run(
                [*command, folder, *keys], env=os.environ | _s3_environ(port), capture_output=True,
                text=True, timeout=CLIENT_S, check=True,
            )  # fmt: skip
        spent, got = ran.stdout.split()[-2:]
        sizes.add(int(got))
        return float(spent)

    sizes: set[int] = set()
    for port in ports:  # warms the page cache
        seconds(port)
    before = [_cpu_s(pid) for pid in servers]
    rows = [(seconds(ports[0]), seconds(ports[1])) for _ in range(turns)]
    spent = [_cpu_s(pid) - cpu for pid, cpu in zip(servers, before, strict=True)]
    assert len(sizes) == 1, f"{client} got different amounts: {sizes}"
    (total,) = sizes
    shares = [plain / ours for plain, ours in rows]
    told = ", ".join(f"{total / a / 1e9:.2f} and {total / b / 1e9:.2f}" for a, b in rows)
    print(
        f"{client}: {total / 1e9:.2f} GB, nginx and door GB/s in turns: {told}; share "
        f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f}); CPU seconds a GB "
        f"{spent[0] / turns / total * 1e9:.2f} and {spent[1] / turns / total * 1e9:.2f}", flush=True,
    )  # fmt: skip


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def _s3_environ(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }  # fmt: skip


@contextmanager
def static_copy(home: Path, tree: Path, port: int) -> Iterator[int]:
    """Serve a published tree by nginx, under the keys that it has at the door; its process id."""
    place = home / "root/acme/big"
    place.mkdir(parents=True)
    for folder in (home, *home.rglob("*")):
        folder.chmod(0o755)
    (place / "v1").symlink_to(tree)
    with nginx(home / "server", home / "root", port) as pid:
        yield pid


# -- the hub door --------------------------------------------------------------------------------


def hub(options: argparse.Namespace) -> None:
    """A pull on all nodes, then the same amount by the hub's client on all nodes."""
    nominal = parse_rate(options.rate)
    plan = Plan(
        nodes=options.nodes, rate=nominal, origin_rate=nominal, size_bytes=parse_size(options.size),
        agent_flags=("--hf-listen", HUB),
    )  # fmt: skip
    with Arena(plan, proxy=False) as arena, tempfile.TemporaryDirectory(dir="/dev/shm") as homes:
        arena.start()
        source = arena.push(plan.size_bytes, "storm/pulled:latest", seed=1)
        pulls = _measured(arena, source, "p2pcache pull", lambda: _pull_all(arena, source))
        for agent in arena.agents:
            agent.client.remove("storm/pulled:latest")
        shutil.rmtree(source)
        source = arena.push(plan.size_bytes, "storm/hub:latest", seed=2)
        loads = _measured(
            arena, source, "hub client", lambda: _snapshot_all(arena, source, Path(homes))
        )
        ratio = max(loads) / max(pulls)
        each = ", ".join(f"{ours / theirs:.3f}" for ours, theirs in zip(loads, pulls, strict=True))
        print(f"last hub client over last pull: {ratio:.3f}; node by node: {each}", flush=True)


def _measured(
    arena: Arena, source: Path, what: str, work: Callable[[], list[float]]
) -> list[float]:
    stat, sent = psutil.cpu_times(), arena.origin.sent_bytes()
    found = work()
    busy = busy_share(stat, psutil.cpu_times())
    read = (arena.origin.sent_bytes() - sent) / total_bytes(source)
    print(
        f"{what}: nodes {min(found):.2f} to {max(found):.2f} s, median {statistics.median(found):.2f} s; "
        f"on storage's link {read:.3f} of the model, CPU {busy:.0%}", flush=True,
    )  # fmt: skip
    return found


def _pull_all(arena: Arena, source: Path) -> list[float]:
    began = time.monotonic()

    def one(number: int) -> tuple[float, Path]:
        done = list(arena.agents[number].client.pull("storm/pulled"))[-1]
        return time.monotonic() - began, arena.agents[number].tree(str(done["path"]))

    with ThreadPoolExecutor(len(arena.agents)) as pool:
        found = list(pool.map(one, range(len(arena.agents))))
    check_tree(found[-1][1], source)
    return [seconds for seconds, _ in found]


def _snapshot_all(arena: Arena, source: Path, homes: Path) -> list[float]:
    clean = {name: value for name, value in arena.environ.items() if not name.startswith("HF_")}

    def start(number: int, host: Host) -> "subprocess.Popen[str]":
        environ = clean | {
            "HF_ENDPOINT": f"http://{HUB}", "HF_HOME": str(homes / str(number)),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        command = [
            *host.prefix,
            sys.executable,
            "-c",
            SNAPSHOT,
            "storm/hub",
            str(homes / f"{number}.up"),
        ]
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    clients = [start(number, host) for number, host in enumerate(arena.node_hosts)]
    try:
        wait_until(lambda: len(list(homes.glob("*.up"))) == len(clients), 60.0)
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        said = [client.communicate(timeout=CLIENT_S)[0].split() for client in clients]
    finally:
        for client in clients:
            client.kill()
    check_tree(Path(said[-1][1]), source)
    return [float(words[0]) for words in said]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.doors", description=__doc__)
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("s3")
    one.set_defaults(run=s3)
    one.add_argument("--size", type=size, default="2GB", help="the model [2GB]")
    one.add_argument("--turns", type=count, default=3, help="of each client [3]")
    for client in ("boto3", "runai"):
        one.add_argument(f"--{client}", metavar="PYTHON", default=sys.executable,
                         help=f"an interpreter that has {client}'s package")  # fmt: skip
    one = kinds.add_parser("hub")
    one.set_defaults(run=hub)
    one.add_argument("--nodes", type=count, default=8)
    one.add_argument(
        "--rate", type=rate, default="150mbit", help="each link, both directions [150mbit]"
    )
    one.add_argument("--size", type=size, default="1GB", help="each of the two models [1GB]")
    return parser


if __name__ == "__main__":
    sys.exit(main())

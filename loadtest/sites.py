"""`python -m loadtest.sites`: two clusters, a long line between them, and a model that crosses it once (root).

Site A is one agent that has the model and seeds it. Site B is a tracker and two agents whose storage lacks it; both
pull at once, by digest. `--kill` kills the one that receives, halfway, and starts it again; `--beside` sends a plain
TCP flow the same way meanwhile. Exit code 0: all bytes right, and the line crossed once; 1: not; 2: can't run here.
"""

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.edge import Beside
from loadtest.kit.cluster import Agent, clean_environ, healthy, run_command, write_key
from loadtest.kit.daemons import P2PCACHE, Daemon, StartError, exit_on_signals, stop_all, wait_until
from loadtest.kit.flags import rate, share, size
from loadtest.kit.models import check_tree, make_model, total_bytes
from loadtest.kit.netns import Fabric, FabricError, Host, in_namespace
from p2pcache.core.units import format_bytes, parse_duration, parse_rate, parse_size
from p2pcache.errors import P2PCacheError

NAME = "public/model"
DOOR, SEED, PEERS, TRACKER = 7405, 7406, 7401, 7400
START_S = 60.0
PULL_S = 170.0
ONCE = 1.1  # bytes on the line over the model's: headers are 4 %
LOST_S = 3.0  # of the line, by a kill: what was proved since the last flush, pieces under way


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    try:
        run(options)
    except (FabricError, StartError, P2PCacheError) as error:
        print(f"sites: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"sites: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """One crossing."""
    nominal = parse_rate(options.rate)
    with Fabric(parse_duration(options.delay) / 2, options.loss) as fabric:
        near = fabric.add("a", rate_bytes_s=nominal)
        home, *far = (fabric.add(name, rate_bytes_s=nominal) for name in ("t", "b1", "b2"))
        source = make_model(fabric.work / "model", parse_size(options.size), shards=2)
        size_bytes = total_bytes(source)
        with _sites(fabric, near, home, far, options.cap) as (seeder, agents):
            where = (fabric.work / "site-a").as_uri()
            run_command(
                "push",
                str(source),
                f"{NAME}:v1",
                "--origin",
                where,
                environ=clean_environ(fabric.work),
            )
            done = list(seeder.client.pull(f"{NAME}:v1"))[-1]
            seeder.wait_log("torrents: seeding [0-9a-f]{64}", START_S)
            ref = f"{NAME}@blake3:{done['digest']}"
            sent, began = fabric.sent_bytes(near), time.monotonic()
            with Beside(near, far[0]) if options.beside else contextlib.nullcontext() as flow:
                pulls = [Pull(agent, ref) for agent in agents]
                if options.kill:
                    _kill_receiver(fabric, near, sent + size_bytes // 2, agents, pulls)
                for pull in pulls:
                    pull.thread.join(PULL_S)
            seconds, crossed = time.monotonic() - began, fabric.sent_bytes(near) - sent
            for agent, pull in zip(agents, pulls, strict=True):
                assert pull.path, f"{agent.name}: {pull.error or 'no end'}\n{agent.tail()}"
                check_tree(agent.tree(pull.path), source)
        kept = f"; a flow beside it kept {flow.rate * 8e-6:.1f} Mbit/s" if flow else ""
        print(
            f"{format_bytes(size_bytes)} at two nodes in {seconds:.1f} s, {size_bytes / seconds * 8e-6:.1f} Mbit/s"
            f"{'' if flow else f'; on the line {crossed / size_bytes:.3f} of the model'}{kept}", flush=True,
        )  # fmt: skip
        lost = LOST_S * nominal if options.kill else 0.0
        assert flow or crossed < ONCE * size_bytes + lost, (
            "the model crossed the line more than once"
        )


class Pull:
    """A pull on a thread; a node that is killed is asked again."""

    def __init__(self, agent: Agent, ref: str) -> None:
        self.path = ""
        self.error = ""
        self.killed = threading.Event()
        self._agent, self._ref = agent, ref
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        deadline = time.monotonic() + PULL_S
        while time.monotonic() < deadline:
            try:
                self.path = str(list(self._agent.client.pull(self._ref))[-1]["path"])
                return
            except P2PCacheError as error:
                self.error = str(error)
                if not self.killed.is_set():
                    return
                time.sleep(0.5)


def _kill_receiver(
    fabric: Fabric, near: Host, until: int, agents: list[Agent], pulls: list[Pull]
) -> None:
    wait_until(lambda: fabric.sent_bytes(near) > until, PULL_S)
    receiver = next(
        n for n, agent in enumerate(agents) if list((agent.cache_dir / "far-sites").glob("*/files"))
    )
    pulls[receiver].killed.set()
    agents[receiver].kill()
    print(f"killed {agents[receiver].name} halfway", flush=True)
    agents[receiver].start()


@contextmanager
def _sites(
    fabric: Fabric, near: Host, home: Host, far: list[Host], cap: str
) -> Iterator[tuple[Agent, list[Agent]]]:
    work, environ = fabric.work, clean_environ(fabric.work)
    for site in ("site-a", "site-b"):
        (work / site).mkdir()
    key = write_key(work / "cluster.key")
    common = ["--cluster-key-file", str(key), "--min-free-bytes", "0"]
    seeder = Agent("a", work / "a", [
        *common, "--listen", f"{near.address}:{PEERS}", "--origin", (work / "site-a").as_uri(),
        "--torrent-listen", f"{near.address}:{SEED}", "--torrent-http-listen", f"{near.address}:{DOOR}",
        "--torrent-namespaces", "public",
    ], environ=environ, prefix=near.prefix)  # fmt: skip
    url = f"http://{home.address}:{TRACKER}"
    tracker = Daemon(
        "tracker", [*P2PCACHE, "tracker", "--listen", f"{home.address}:{TRACKER}", "--origin",
                    (work / "site-b").as_uri(), "--cluster-key-file", str(key), "--state-dir", str(work / "t")],
        work / "tracker.log", environ=environ, prefix=home.prefix,
        ready=lambda: in_namespace(home, lambda: healthy(f"{url}/healthz")),
    )  # fmt: skip
    agents = [
        Agent(host.port, work / host.port, [
            *common, "--listen", f"{host.address}:{PEERS}", "--tracker", url,
            "--torrent-sites", f"public={near.address}:{DOOR}", "--torrent-download-bytes-per-s", cap,
        ], environ=environ, prefix=host.prefix)
        for host in far
    ]  # fmt: skip
    daemons = [seeder, *agents]
    try:
        tracker.start()
        for agent in daemons:
            agent.start(wait=False)
        for agent in daemons:
            agent.wait_ready(START_S)
        wait_until(lambda: all(agent.ready() for agent in daemons), START_S)
        yield seeder, agents
    except BaseException:
        for agent in daemons:
            print(f"--- {agent.name}\n{agent.tail()}", file=sys.stderr)
        raise
    finally:
        stop_all(daemons)
        stop_all([tracker])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.sites", description=__doc__)
    add = parser.add_argument
    add("--rate", type=rate, default="50mbit", help="each link, both directions [50mbit]")
    add("--delay", default="40ms", help="a round trip between any two hosts [40ms]")
    add("--loss", type=share, default=0.0, help="share of packets that never arrive [0]")
    add("--size", type=size, default="32MiB", help="of the model [32MiB]")
    add("--cap", type=rate, default="10gbit", help="of what site B takes from site A [10gbit]")
    add("--kill", action="store_true", help="kill the receiving agent halfway, and start it again")
    add("--beside", action="store_true", help="with a plain TCP flow on the same way")
    return parser


if __name__ == "__main__":
    sys.exit(main())

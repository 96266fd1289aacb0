"""A cluster in mTLS mode, without a cluster key: real daemons, certificates of `p2pcache ca`."""

import asyncio
import json
import os
import signal
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import HEALTH_S, Agent, Cluster, last_event, run_command
from loadtest.kit.daemons import P2PCACHE, Daemon, StartError, wait_until
from loadtest.kit.models import check_tree
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.ids import parse_node
from tests.certs import Authority, Tap, tapped
from tests.functional.node import Pull, bytes_done

MARKER = b"these weights are a secret of ours "


class TlsCluster(Cluster):
    """Every daemon with a certificate of its own; no cluster key."""

    def __init__(self, authority: Authority, origin: str, **options: Any) -> None:
        self.authority = authority
        super().__init__(origin, **options)
        self.key_file.unlink()

    def _tracker(self, port: int, /, *_: Any) -> Daemon:
        self.tracker_url = f"https://127.0.0.1:{port}"
        self.tracker_files = self.authority.files("tracker", "tracker")
        command = [*P2PCACHE, "tracker", "--listen", f"127.0.0.1:{port}", "--origin", self.origin,
                   *self.tracker_files.flags()]  # fmt: skip
        return Daemon("tracker", command, self.root / "tracker.log", ready=self.healthy,
                      environ=self.environ, leash=self._leash)  # fmt: skip

    def _agent(self, number: int, port: int) -> Agent:
        name = f"agent-{number + 1}"
        flags = ["--listen", f"127.0.0.1:{port}", "--min-free-bytes", "0", "--tracker", self.tracker_url,
                 *self.authority.files(name).flags(), *self._agent_flags]  # fmt: skip
        return Agent(name, self.root / name, flags, environ=self.environ, leash=self._leash)

    def get(self, path: str) -> str:
        """GET from the tracker, as Prometheus would: it knows the CA and shows nothing."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        url = self.tracker_url + path
        with urllib.request.urlopen(url, timeout=HEALTH_S, context=context) as answer:
            text: str = answer.read().decode()
            return text

    def healthy(self) -> bool:
        try:
            return bool(self.get("/healthz"))
        except OSError:
            return False


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@contextmanager
def tap_in_front_of(address: str) -> Iterator[Tap]:
    """A relay that runs beside the test."""
    host, _, port = address.rpartition(":")
    started, taps = threading.Event(), list[Tap]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with tapped(host, int(port)) as tap:
            taps.append(tap)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield taps[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def flag(daemon: Daemon, name: str) -> str:
    return daemon.command[daemon.command.index(name) + 1]


def test_models_move_unseen_between_members(
    authority: Authority, origin_dir: Path, tmp_path: Path
) -> None:
    source = tmp_path / "secret"
    source.mkdir()
    (source / "weights.bin").write_bytes(MARKER * 120_000)  # 4 MB
    cluster = TlsCluster(authority, f"file://{origin_dir}", agents=2)
    with (
        tap_in_front_of(flag(cluster.tracker, "--listen")) as at_tracker,
        tap_in_front_of(flag(cluster.agents[0], "--listen")) as at_first,
    ):
        for agent in cluster.agents:
            agent.command[agent.command.index("--tracker") + 1] = f"https://{at_tracker.address}"
        cluster.agents[0].command += ["--advertise", at_first.address]
        with cluster:
            cluster.run("push", str(source), "m:v1", "--origin", cluster.origin, agent=None)
            cluster.run("pull", "m:v1", agent=0)
            done = last_event(cluster.run("pull", "m:v1", "--json", agent=1).stdout)
            check_tree(Path(done["path"]), source)
            assert done["bytes_peers"] == done["bytes"] > 0
            # A pull without a daemon is a member too, with a node id of its own.
            files = authority.files("agent-1")
            environ = {
                "P2PCACHE_TRACKER": cluster.tracker_url, "P2PCACHE_TLS_CERT": files.tls_cert,
                "P2PCACHE_TLS_KEY": files.tls_key, "P2PCACHE_TLS_CA": files.tls_ca,
            }  # fmt: skip
            alone = cluster.run("pull", "m:v1", "--json", agent=None, environ=environ)
            assert last_event(alone.stdout)["bytes_peers"] == done["bytes"]
            nodes = json.loads(cluster.get("/v1/nodes"))["nodes"]
            names = {
                name for name in ("agent-1", "agent-2") for node in nodes
                if Member("agent", name).owns(parse_node(node["node"]))
            }  # fmt: skip
            assert names == {"agent-1", "agent-2"}
            assert "p2pcache_tracker_certificate_expiry_timestamp_seconds" in cluster.get(
                "/metrics"
            )
        assert len(at_first.seen) > done["bytes"]
        assert b"weights.bin" not in at_tracker.seen  # the manifest came through here
        assert len(at_tracker.seen) > 10_000
        for tap in (at_first, at_tracker):
            assert MARKER not in tap.seen


def test_new_certificates_while_a_pull_runs(
    authority: Authority, origin_dir: Path, model: Path
) -> None:
    with TlsCluster(
        authority, f"file://{origin_dir}", agents=2, agent_flags=("--upload-bytes-per-s", "8MiB/s")
    ) as cluster:
        cluster.run("push", str(model), "m:v1", "--origin", cluster.origin, agent=None)
        cluster.run("pull", "m:v1", agent=0)
        pull = Pull(cluster.agents[1], "m:v1")
        wait_until(lambda: bytes_done(cluster.agents[1]) > 0, 60)
        daemons = [("tracker", "tracker", cluster.tracker)]
        daemons += [("agent", agent.name, agent) for agent in cluster.agents]
        for _, _, daemon in daemons:
            Path(flag(daemon, "--tls-cert")).write_text("half a file")
            os.kill(daemon.pid, signal.SIGHUP)
            daemon.wait_log("the new certificate is not in use: .* PEM form")
        for role, name, daemon in daemons:
            files = authority.files(name, "tracker" if role == "tracker" else "agent", days=60)
            Path(files.tls_key).replace(flag(daemon, "--tls-key"))
            Path(files.tls_cert).replace(flag(daemon, "--tls-cert"))
            os.kill(daemon.pid, signal.SIGHUP)
            daemon.wait_log(f"new certificate of {role} '{name}', good until")
        check_tree(cluster.agents[1].tree(str(pull.wait()["path"])), model)
        late = cluster.add_agent()
        late.start()
        wait_until(late.ready, 60)
        assert last_event(cluster.run("pull", "m:v1", "--json", agent=2).stdout)["bytes_peers"] > 0


def test_who_is_no_member_reads_why(authority: Authority, origin_dir: Path, tmp_path: Path) -> None:
    with TlsCluster(authority, f"file://{origin_dir}", agents=0) as cluster:
        without, foreign = cluster.add_agent(), cluster.add_agent()
        first = without.command.index("--tls-cert")
        del without.command[first : first + 6]
        swap(foreign, Authority(tmp_path / "foreign").files("agent-2").flags())
        for agent in (without, foreign):
            agent.start()
            agent.wait_log("its certificate is not good: .*certificate")
            assert not agent.ready()
        # Who trusts the tracker all the same is refused by it.
        mixed = Path(flag(foreign, "--tls-ca"))
        mixed.write_bytes(mixed.read_bytes() + authority.ca.read_bytes())
        os.kill(foreign.pid, signal.SIGHUP)
        foreign.wait_log("it hung up on agent 'agent-2'; does it know our CA")
        cluster.tracker.wait_log("refused a TLS client: its certificate is not good: .*certificate")
        assert json.loads(cluster.get("/v1/nodes"))["nodes"] == []


def swap(daemon: Daemon, flags: list[str]) -> None:
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        daemon.command[daemon.command.index(name) + 1] = value


def test_what_can_not_work_does_not_start(authority: Authority, origin_dir: Path) -> None:
    cluster = TlsCluster(authority, f"file://{origin_dir}", agents=0)
    try:
        expired, role, plain = (cluster.add_agent() for _ in range(3))
        swap(expired, authority.expired("agent-1").flags())
        swap(role, authority.files("t", "tracker").flags())
        plain.command[plain.command.index("--tracker") + 1] = "http://127.0.0.1:1"
        for agent, code, text in (
            (expired, 4, "certificate has expired"),
            (role, 4, "can't be used|is for tracker 't'|not good for the CA"),
            (plain, 2, "in mTLS mode the tracker's URL begins with https://"),
        ):
            with pytest.raises(StartError, match=f"(?s)code {code}.*error: .*({text})"):
                agent.start()
    finally:
        cluster.stop()


def test_the_command_line_of_the_ca(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    folder = tmp_path / "ca"
    done = run_command("ca", "init", str(folder), "--name", "prod", environ=environ)
    assert done.stdout == f"{folder}/ca.pem\n"
    done = run_command("ca", "issue", str(folder), "n1", "--role", "agent", environ=environ)
    assert done.stdout == f"{folder}/n1.pem\n{folder}/n1.key\n"
    assert "agent 'n1', good until" in done.stderr
    again = run_command(
        "ca", "issue", str(folder), "n1", "--role", "agent", environ=environ, code=10
    )
    assert "never overwritten" in again.stderr
    run_command("ca", "issue", str(folder), "n1", "--role", "root", environ=environ, code=2)
    run_command("ca", "issue", str(tmp_path), "n1", "--role", "agent", environ=environ, code=3)

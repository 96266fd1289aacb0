"""`p2pcache doctor` against what is really there: daemons, storages, keys, and nothing at all."""

import http.server
import json
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import Cluster, free_ports, write_key
from loadtest.kit.daemons import wait_until
from p2pcache import __version__
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent
from tests.io.models.store_kit import small_file_system


def report(run: Run, *args: object, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The command's code, and its findings by check."""
    result = run("doctor", "--json", *args, env=env, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    document = json.loads(result.stdout)
    assert document["code"] == result.return_value
    return document["code"], {f["check"]: f for f in document["findings"]}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(f"file://{tmp_path_factory.mktemp('origin')}", agents=1) as running:
        yield running


def test_a_node_without_cluster_has_warnings_only(run: Run, cache: Path) -> None:
    code, found = report(run, "--cache-dir", cache)
    assert code == 0
    assert found["agent"]["level"] == "warn"
    assert "systemctl start" in found["agent"]["advice"]
    assert found["tracker"]["level"] == "ok"
    assert "writes" in found["disk"]["measured"]
    assert list(cache.iterdir()) == []


def test_doctor_prints_levels_and_advice(run: Run, cache: Path) -> None:
    lines = run("doctor", "--cache-dir", cache, "--origin", "file:///none/here").stdout.splitlines()
    assert lines[-1].startswith("1 failed, ")
    assert any(line.startswith("fail  origin ") for line in lines)
    assert any(line.startswith(" " * 19 + "-> ") for line in lines)


def test_a_good_cluster(run: Run, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    code, found = report(
        run, "--cache-dir", agent.cache_dir, "--tracker", cluster.tracker_url, "--agent", agent.url,
        "--cluster-key-file", cluster.key_file,
    )  # fmt: skip
    assert code == 0, found
    assert "took us for a member" in found["tracker"]["measured"]
    assert found["origin"]["measured"].startswith(cluster.origin)  # the tracker told us
    assert found["agent"]["measured"].endswith("ready")
    assert found["files"]["measured"].endswith("(the agent's)")
    assert "within 1 s of the tracker's" in found["clock"]["measured"]
    assert found["key"]["level"] == "ok"
    assert len(agent.client.nodes()) == 1  # nobody heard of us


def test_of_several_trackers_one_will_do(run: Run, cluster: Cluster) -> None:
    agent, nobody = cluster.agents[0], f"http://127.0.0.1:{free_ports(1)[0]}"
    code, found = report(
        run, "--cache-dir", agent.cache_dir, "--tracker", nobody, "--tracker", cluster.tracker_url,
        "--agent", agent.url, "--cluster-key-file", cluster.key_file,
    )  # fmt: skip
    assert code == 0, found
    assert found["tracker"]["measured"].startswith(f"{cluster.tracker_url} is active")
    assert found["origin"]["measured"].startswith(cluster.origin)


def role(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        return str(json.load(answer)["role"])


def test_each_tracker_has_its_line(run: Run, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"

    def lines(*trackers: str) -> list[tuple[str, str]]:
        told = run(
            "doctor", "--json", "--cache-dir", cache, "--cluster-key-file", two.key_file,
            "--tracker", ",".join(trackers), standalone_mode=False,
        )  # fmt: skip
        rows = json.loads(told.stdout)["findings"]
        return [(row["level"], row["measured"]) for row in rows if row["check"] == "tracker"]

    with Cluster(f"file://{tmp_path}/origin", agents=0, trackers=2) as two:
        first, second = two.tracker_url.split(",")
        wait_until(lambda: role(first) == "active" and role(second) == "standby", 20)
        found = lines(nobody, second, first)
        assert [level for level, _ in found] == ["warn", "ok", "ok"]
        for (_, measured), text in zip(
            found, (f"{nobody} is not reachable", f"{second} is a standby", f"{first} is active"),
            strict=True,
        ):  # fmt: skip
            assert text in measured
        # The standby alone names the active one, which has its line, too.
        assert [text.partition(",")[0] for _, text in lines(second)] == [
            f"{second} is a standby", f"{first} is active",
        ]  # fmt: skip


def test_an_agent_with_other_settings_than_those_that_are_examined(
    run: Run, cluster: Cluster, cache: Path
) -> None:
    agent = cluster.agents[0]
    _, found = report(run, "--cache-dir", cache, "--agent", agent.url)
    assert found["agent"]["level"] == "warn"
    said = found["agent"]["measured"]
    assert f"started with cache {agent.cache_dir}" in said
    assert "tracker" not in said


def test_beside_an_agent_its_settings_are_examined(run: Run, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    code, found = report(run, "--agent", agent.url)
    assert code == 0, found
    assert str(cluster.root) in found["key"]["measured"]
    assert cluster.tracker_url in found["tracker"]["measured"]
    assert str(agent.cache_dir) in found["cache"]["measured"]
    assert found["agent"]["measured"].endswith("ready")


def test_who_is_not_root_is_never_told_to_make_a_key(
    run: Run, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    nobody = ("--cache-dir", cache, "--agent", f"unix://{tmp_path}/none")
    monkeypatch.setenv("P2PCACHE_LISTEN", "0.0.0.0:7401")
    for flags in (
        (),
        ("--cluster-key-file", tmp_path / "missing", "--tracker", "http://127.0.0.1:9"),
    ):
        _, found = report(run, *nobody, *flags)
        for finding in (found["key"], found["tracker"]):
            assert "make" not in finding["advice"]
        assert "root or as a member of group p2pcache" in found["key"]["advice"]


def test_another_key_is_refused(run: Run, cluster: Cluster, cache: Path, tmp_path: Path) -> None:
    other = write_key(tmp_path / "other.key")
    code, found = report(
        run, "--cache-dir", cache, "--tracker", cluster.tracker_url, "--cluster-key-file", other
    )
    assert code == 4
    assert found["tracker"]["level"] == "fail"
    assert "key" in found["tracker"]["measured"] + found["tracker"]["advice"]


def test_a_key_that_others_may_read(run: Run, cache: Path, tmp_path: Path) -> None:
    key = write_key(tmp_path / "k")
    key.chmod(0o644)
    code, found = report(run, "--cache-dir", cache, "--cluster-key-file", key)
    assert code == 4
    assert "chmod 600" in found["key"]["advice"]


def test_a_daemon_that_does_not_answer_is_a_finding(run: Run, cache: Path, tmp_path: Path) -> None:
    """A tracker that isn't there, one that is no tracker, and one that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
        began = time.monotonic()
        code, found = report(run, "--cache-dir", cache, "--tracker", f"http://{address}")
        assert (code, found["tracker"]["level"]) == (8, "fail")
        assert time.monotonic() - began < 20
    code, found = report(run, "--cache-dir", cache, "--tracker", f"http://{address}")
    assert (code, found["tracker"]["level"]) == (8, "fail")
    assert found["tracker"]["measured"].endswith("is not reachable: connection refused")
    code, found = report(run, "--cache-dir", cache, "--tracker", "tracker:7400")
    assert code == 2
    code, found = report(run, "--cache-dir", cache, "--agent", f"unix://{tmp_path}/none")
    assert code == 8
    assert found["agent"]["level"] == "fail"


def test_a_web_server_is_no_tracker(run: Run, cache: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, found = report(run, "--cache-dir", cache, "--tracker", url)
        server.shutdown()
    assert code == 8
    assert "not as a tracker" in found["tracker"]["measured"]


def test_bad_settings_are_a_finding_too(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[agent]\nlitsen = 1\n")
    code, found = report(run, "--config", file)
    assert code == 2
    assert set(found) == {"settings"}
    assert "did you mean 'listen'" in found["settings"]["advice"]


def test_a_password_in_a_url_is_not_shown(run: Run, cache: Path) -> None:
    url = "s3://me:hunter2@bucket"
    result = run("doctor", "--cache-dir", cache, "--origin", url)
    assert "hunter2" not in result.output


def test_an_unreadable_key_says_who_may_read_it(
    run: Run, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = write_key(tmp_path / "k")
    monkeypatch.setattr("os.access", lambda path, _mode: str(path) != str(key))
    code, found = report(run, "--cache-dir", cache, "--cluster-key-file", key)
    assert code == 4
    assert found["key"]["advice"] == "run this as root or as a member of group p2pcache"


def test_a_cluster_with_certificates(
    run: Run, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mTLS: our certificate is good, a stranger's is refused, and none at all is told what to set."""
    from loadtest.kit.cluster import clean_environ, free_ports
    from loadtest.kit.daemons import P2PCACHE, Daemon

    for ca in ("ca", "other"):
        run("ca", "init", tmp_path / ca)
        run("ca", "issue", tmp_path / ca, "one", "--role", "agent")
    run("ca", "issue", tmp_path / "ca", "hub", "--role", "tracker")
    port = free_ports(1)[0]
    command = [*P2PCACHE, "tracker", "--listen", f"127.0.0.1:{port}", "--origin", f"file://{cache}",
               "--tls-cert", f"{tmp_path}/ca/hub.pem", "--tls-key", f"{tmp_path}/ca/hub.key",
               "--tls-ca", f"{tmp_path}/ca/ca.pem"]  # fmt: skip
    environ = clean_environ(tmp_path)
    tracker = Daemon(
        "tracker", command, tmp_path / "log", environ=environ, ready=lambda: _open(port)
    )
    tracker.start()

    def examine(ca: str) -> tuple[int, dict[str, dict[str, Any]]]:
        where = tmp_path / ca
        env = {"P2PCACHE_TLS_CERT": f"{where}/one.pem", "P2PCACHE_TLS_KEY": f"{where}/one.key",
               "P2PCACHE_TLS_CA": f"{where}/ca.pem"} if ca else {}  # fmt: skip
        url = f"https://127.0.0.1:{port}"
        return report(run, "--cache-dir", cache, "--tracker", url, **env)

    try:
        code, found = examine("ca")
        assert code == 0, found
        assert found["certificate"]["measured"] == "agent 'one'"
        assert "took us for a member" in found["tracker"]["measured"]
        assert found["origin"]["measured"].startswith(f"file://{cache}")
        for stranger in ("other", ""):
            code, found = examine(stranger)
            assert code == 4, found["tracker"]
            assert found["tracker"]["level"] == "fail"
            assert found["tracker"]["advice"]
    finally:
        tracker.stop()


def _open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class OtherTime(http.server.BaseHTTPRequestHandler):
    """A storage whose clock is twenty minutes behind, and which refuses ours."""

    def do_GET(self) -> None:
        body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>too far</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) - 1200)

    def log_message(self, *_: object) -> None:
        pass


def test_a_wrong_clock_is_the_cause_of_refused_signatures(run: Run, cache: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherTime) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_REGION": "x",
               "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hunter2"}  # fmt: skip
        code, found = report(run, "--cache-dir", cache, "--origin", "s3://bucket", **env)
        server.shutdown()
    assert code == 4
    assert "1200 s ahead of the origin's" in found["clock"]["measured"]
    assert "NTP" in found["clock"]["advice"]
    assert found["origin"]["level"] == "fail"


def test_a_node_that_the_others_cannot_reach(run: Run, cache: Path, agent: FakeAgent) -> None:
    tracker = {"tracker": {"url": ""}, "cache": {"dir": str(cache)}}
    agent.document(
        "GET /v1/status", {"node": "aa", "version": __version__, "reasons": [], **tracker}
    )
    rows = [
        {"node": "bb", "address": "b:7401", "unreached": True},
        {"node": "aa", "address": "a:7401", "unreached": False},
    ]
    agent.document("GET /v1/nodes", {"nodes": rows})
    _, found = report(run, "--cache-dir", cache, "--agent", agent.address)
    assert found["agent"]["measured"].endswith("ready")
    rows[1]["unreached"] = True
    _, found = report(run, "--cache-dir", cache, "--agent", agent.address)
    assert "no other node reaches it at a:7401" in found["agent"]["measured"]
    assert "--advertise" in found["agent"]["advice"]


def test_a_disk_without_inodes_fails_although_bytes_are_free(run: Run, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 64 << 20, inodes=20) as place:
        code, found = report(run, "--cache-dir", place, "--origin", tmp_path.as_uri())
    assert (found["space"]["level"], found["space"]["code"]) == ("fail", 5)
    assert "inodes left" in str(found["space"])
    assert code


def test_a_small_disk_is_not_filled_to_measure_it(run: Run, tmp_path: Path) -> None:
    """The file that measures took the last blocks of a cache's disk, and doctor called that a failure."""
    with small_file_system(tmp_path / "small", 64 << 20) as place:
        (place / "cache").mkdir()
        code, found = report(run, "--cache-dir", place / "cache", P2PCACHE_MIN_FREE_BYTES="1mb")
    assert (code, found["disk"]["level"]) == (0, "warn")
    assert "too little to measure with" in found["disk"]["measured"]

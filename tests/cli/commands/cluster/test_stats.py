"""`stats`, `history` and the whole of `status`, from scripted answers and on a real terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent

PULL: dict[str, Any] = {
    "ref": "team/llama:v3", "digest": HEX, "bytes_done": 60_000_000, "bytes_total": 80_000_000,
    "rate": 20_000_000, "eta_s": 1.0, "peers": 5, "bytes_origin": 15_000_000,
    "bytes_peers": 45_000_000, "started": 0, "clients": 3,
}  # fmt: skip
ROW: dict[str, Any] = {
    "ended": time.time() - 60, "action": "pull", "ref": "team/llama:v2", "digest": HEX,
    "bytes": 140_000_000_000, "seconds": 50.0, "rate": 2_800_000_000, "bytes_origin": 35_000_000_000,
    "bytes_peers": 105_000_000_000, "bytes_local": 0, "code": 0, "message": "", "times": 1,
}  # fmt: skip
FAILED = ROW | {"code": 7, "message": "storage\x1b[31m doesn't answer", "times": 4, "rate": 0}
PRUNED = ROW | {"action": "prune", "ref": "", "bytes_peers": 0, "bytes_origin": 0}
STATUS: dict[str, Any] = {
    "node": "00000000000000aa", "name": "gpu-01", "address": "10.0.0.1:7401", "rack": "r1\x07",
    "site": "ams", "version": "0.1.0", "uptime_s": 7300.0, "ready": False,
    "reasons": ["origin: no answer"], "warnings": ["the certificate ends in 3 days"],
    "tracker": {"url": "http://t:7400", "connected": True, "error": ""},
    "origin": {"url": "s3://models", "error": "no answer"},
    "cache": {"dir": "/var/lib/p2pcache", "cached_bytes": 3 * 10**11, "free_bytes": 10**11},
    "models": 4, "pulls": [PULL], "load": 2, "peers": 9,
    "bytes": {"peer": 3_000_000, "origin": 1_000_000, "local": 0, "served": 7_000_000},
}  # fmt: skip


@pytest.fixture
def node(agent: FakeAgent) -> FakeAgent:
    tracker = STATUS["tracker"] | {"last_heartbeat": time.time() - 2}
    agent.document("GET /v1/status", STATUS | {"tracker": tracker})
    agent.document("GET /v1/history", {"history": [FAILED, ROW, PRUNED]})
    return agent


def test_status_says_all_that_fits_a_screen(node: FakeAgent, run: Run) -> None:
    lines = run("status", "--agent", node.address).stdout.splitlines()
    text = "\n".join(lines)
    assert lines[0].startswith("agent:    not ready, version 0.1.0, up 2h01m")
    assert lines[1].strip() == "origin: no answer"
    for part in (
        "warning:  the certificate ends in 3 days", "gpu-01 00000000000000aa at 10.0.0.1:7401 (ams / r1?)",
        "http://t:7400 (connected, heartbeat 2", "s3://models", "300 GB in 4 models, 100 GB free",
        "3.00 MB from peers (75%), 1.00 MB from storage, 7.00 MB served", "1 running",
    ):  # fmt: skip
        assert part in text


def test_status_of_the_release_before(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/status", {"ready": True, "version": "0.0.9"})
    done = run("status", "--agent", agent.address)
    assert done.exit_code == 0, done.output
    assert "0.0.9" in done.stdout


def test_history_is_a_table(node: FakeAgent, run: Run) -> None:
    lines = run("history", "--agent", node.address).stdout.splitlines()
    assert lines[0].split() == ["WHEN", "ACTION", "REF", "SIZE", "TIME", "RATE", "PEERS", "RESULT"]
    assert lines[1].endswith("exit 7 (4 times): storage?[31m doesn't answer")
    assert lines[2].split()[2:] == [
        "pull", "team/llama:v2", "140", "GB", "50s", "2.80", "GB/s", "75%", "done",
    ]  # fmt: skip
    assert lines[3].split()[2:4] == ["prune", "-"]


def test_what_warms_a_cache_is_called_so(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/status", STATUS | {"pulls": [PULL | {"kind": "warm", "clients": 1}]})
    agent.document("GET /v1/history", {"history": [ROW | {"action": "warm"}]})
    assert (
        "from 5 peers  warm" in run("stats", "--interval", "100ms", "--agent", agent.address).stdout
    )
    assert "2.80 GB/s" in run("history", "--agent", agent.address).stdout


def test_history_failed_json_limit(node: FakeAgent, run: Run) -> None:
    done = run("history", "--failed", "--json", "--agent", node.address)
    assert [row["code"] for row in json.loads(done.stdout)["history"]] == [7]
    run("history", "-n", "7", "--agent", node.address)
    assert node.seen[-1][1] == "/v1/history?limit=7"
    assert run("history", "-n", "0", "--agent", node.address).exit_code == 2


def test_history_of_a_cache_without_a_daemon(run: Run, tmp_path: Any) -> None:
    done = run("history", "--json", "--cache-dir", tmp_path / "none")
    assert json.loads(done.stdout) == {"history": []}


def test_stats_once(node: FakeAgent, run: Run) -> None:
    answers = iter([STATUS, STATUS | {"bytes": {**STATUS["bytes"], "peer": 5_000_000}}])
    node.replies["GET /v1/status"] = lambda handler: handler.answer(200, next(answers))
    text = run("stats", "--interval", "200ms", "--agent", node.address).stdout
    assert re.search(r"from peers +\d\.\d+ MB/s +5\.00 MB", text)
    assert re.search(r"served +0 B/s +7\.00 MB", text)
    assert (
        "team/llama:v3\n  ##################......   75%  of 80.0 MB  20.0 MB/s  ETA 1.0s" in text
    )
    assert "75% from 5 peers  3 waiting" in text
    assert "pull team/llama:v2  done, 140 GB in 50s" in text
    assert "\x1b" not in text


def test_stats_json(node: FakeAgent, run: Run) -> None:
    done = run("stats", "--json", "--interval", "0.2", "--agent", node.address)
    document = json.loads(done.stdout)
    assert document["rates"] == {"peer": 0, "origin": 0, "local": 0, "served": 0}
    assert document["node"] == STATUS["node"]
    assert len(document["history"]) == 3


def test_stats_needs_an_agent_and_a_sane_interval(run: Run, node: FakeAgent) -> None:
    assert run("stats").exception.exit_code == 8  # type: ignore[union-attr]
    done = run("stats", "--interval", "1ms", "--agent", node.address)
    assert done.exception.exit_code == 2  # type: ignore[union-attr]


@pytest.mark.slow
def test_stats_live_on_a_terminal_until_ctrl_c(node: FakeAgent) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "p2pcache.cli.main", "stats", "--interval", "100ms"]
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    child = subprocess.Popen(
        [*command, "--agent", node.address], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    try:
        wait_for(ours, b"team/llama:v3")
        node.document("GET /v1/status", {"code": 8, "message": "stopping"}, status=503)
        wait_for(ours, b"trying again")
        node.document("GET /v1/status", STATUS | {"version": "9.9.9"})
        wait_for(ours, b"9.9.9")
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)


def wait_for(terminal: int, text: bytes) -> None:
    shown, deadline = b"", time.monotonic() + 60
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536)

"""`stats`, from scripted answers and on a real terminal."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest

from p2pcache.cli.commands.cluster import stats
from tests.cli.commands.cluster.answers import PULL, STATUS
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_stats_name_the_kind_of_a_pull(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/status", STATUS | {"pulls": [PULL | {"kind": "warm", "clients": 1}]})
    agent.document("GET /v1/history", {"history": []})
    text = run("stats", "--interval", "100ms", "--agent", agent.address).stdout
    assert "from 5 peers  warm" in text


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
    assert document["bytes_per_s"] == {"peers": 0, "origin": 0, "local": 0, "served": 0}
    assert document["bytes_peers"] == STATUS["bytes"]["peer"]
    assert document["node"] == STATUS["node"]
    assert len(document["history"]) == 3


def test_stats_needs_an_agent_and_a_sane_interval(run: Run, node: FakeAgent) -> None:
    assert run("stats").exception.exit_code == 8  # type: ignore[union-attr]
    done = run("stats", "--interval", "1ms", "--agent", node.address)
    assert done.exception.exit_code == 2  # type: ignore[union-attr]


SENDER = """
import os, random, signal, sys, time
while sys.stdin.buffer.raw.read(1):
    time.sleep(random.random() * 0.0003)
    os.kill(int(sys.argv[1]), signal.SIGINT)
"""


class OneInterrupt:
    """Stands for a `Watch`; at its first refresh another process sends Ctrl-C."""

    trouble = ""

    def __init__(self, sender: "subprocess.Popen[bytes]") -> None:
        self._sender = sender
        self._asked = False

    def refresh(self) -> None:
        if not self._asked:
            self._asked = True
            assert self._sender.stdin
            self._sender.stdin.write(b"x")

    def lines(self) -> Iterator[str]:
        return iter(())


@pytest.mark.slow
def test_ctrl_c_ends_the_live_view_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler could wait for the lock of the wait that it interrupted, for ever."""
    monkeypatch.setattr("rich.live.Live", lambda *_, **__: contextlib.nullcontext(MagicMock()))
    monkeypatch.setattr(stats, "_screen", lambda _: None)
    command = [sys.executable, "-c", SENDER, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as sender:
        for _ in range(3000):
            stats._live(OneInterrupt(sender), 0.000001)  # type: ignore[arg-type]


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

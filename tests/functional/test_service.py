"""The daemons under a service manager: what they tell it, and what it hears when they hang."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.cluster import Agent, clean_environ, free_ports, healthy
from loadtest.kit.daemons import P2PCACHE, Daemon, wait_until

WATCHDOG_S = 1.0


class Manager:
    """The end of the socket that a service manager reads."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        usec = str(int(WATCHDOG_S * 1e6))
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": usec}
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        """Everything that was said since the start."""
        while True:
            try:
                self.heard.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def wait(self, pattern: str, limit_s: float = 60) -> None:
        """Wait until a message matches."""
        wait_until(lambda: any(re.search(pattern, text) for text in self.listen()), limit_s)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.socket.close()


def test_an_agent_tells_its_manager(tmp_path: Path, manager: Manager) -> None:
    tracker = free_ports(1)[0]
    flags = ["--listen", "127.0.0.1:0", "--tracker", f"http://127.0.0.1:{tracker}"]
    environ = clean_environ(tmp_path) | manager.environ
    agent = Agent("agent", tmp_path / "a", flags, environ=environ)
    agent.start(wait=False)
    try:
        manager.wait("^READY=1\n")
        assert agent.answers(), "ready means that it serves"
        manager.wait("STATUS=not ready: tracker .* is not reachable: .*refused|Cannot connect")
        check_the_watchdog(manager, agent)
    finally:
        assert agent.stop() == 0
    assert any(text.startswith("STOPPING=1\nSTATUS=") for text in manager.listen())


def test_a_tracker_tells_its_manager(tmp_path: Path, manager: Manager) -> None:
    port = free_ports(1)[0]
    (tmp_path / "origin").mkdir()
    command = [*P2PCACHE, "tracker", "--listen", f"127.0.0.1:{port}", "--origin",
               f"file://{tmp_path}/origin"]  # fmt: skip
    tracker = Daemon("tracker", command, tmp_path / "log", environ=clean_environ(tmp_path) | manager.environ,
                     ready=lambda: healthy(f"http://127.0.0.1:{port}/healthz"))  # fmt: skip
    tracker.start()
    try:
        manager.wait("^READY=1\nSTATUS=ready: 0 members$")
        check_the_watchdog(manager, tracker)
    finally:
        assert tracker.stop() == 0
    assert any(text.startswith("STOPPING=1\nSTATUS=") for text in manager.listen())


def check_the_watchdog(manager: Manager, daemon: Daemon) -> None:
    """Fed at half its limit; a daemon that is stopped feeds it no more, and again when it goes on."""
    before, began = manager.listen().count("WATCHDOG=1"), time.monotonic()
    wait_until(lambda: manager.listen().count("WATCHDOG=1") - before >= 3, 60)
    fed, passed = manager.listen().count("WATCHDOG=1") - before, time.monotonic() - began
    assert fed <= 2 + passed / (WATCHDOG_S / 2)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        manager.listen()
        manager.heard.clear()
        time.sleep(1.5 * WATCHDOG_S)
        assert manager.listen().count("WATCHDOG=1") <= 1  # one may have been on its way
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    manager.wait("^WATCHDOG=1")


def test_a_daemon_that_the_watchdog_kills_leaves_traces(tmp_path: Path) -> None:
    """SIGABRT is what systemd sends: every thread's stack goes to the journal."""
    agent = Agent(
        "agent", tmp_path / "a", ["--listen", "127.0.0.1:0"], environ=clean_environ(tmp_path)
    )
    agent.start()
    os.kill(agent.pid, signal.SIGABRT)
    assert agent.await_end(60) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in agent.log()
    assert "most recent call first" in agent.log()


def test_a_manager_that_cannot_be_understood_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*P2PCACHE, "agent", "--cache-dir", str(tmp_path / "c"), "--socket", str(tmp_path / "s")],
        env=clean_environ(tmp_path) | {"NOTIFY_SOCKET": "vsock:2:1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "NOTIFY_SOCKET" in done.stderr

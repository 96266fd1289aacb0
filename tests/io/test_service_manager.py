"""sd_notify against real datagram sockets: what the manager would read, and what it would miss."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import UsageError
from p2pcache.io.service_manager import Notifier


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """Every datagram since the last call."""
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@p2pcache-test-{secrets.token_hex(8)}"
    manager = Manager(str(tmp_path / "notify") if request.param == "path" else name)
    yield manager
    manager.socket.close()


async def test_ready_status_stopping(manager: Manager) -> None:
    with Notifier(manager.address) as notifier:
        assert manager.heard() == []
        notifier.ready(lambda: "3 models,\n\x1bfine")
        notifier.stopping("saying goodbye")
    assert manager.heard() == [
        "READY=1\nSTATUS=3 models, \\x1bfine",
        "STOPPING=1\nSTATUS=saying goodbye",
    ]


async def test_the_watchdog_is_fed_at_half_its_limit_by_the_loop(manager: Manager) -> None:
    with Notifier(manager.address, watchdog_s=0.2):
        at, gaps = time.monotonic(), list[float]()
        async with asyncio.timeout(30):
            # On a busy machine single ones are late, so one in time tells how often it is meant.
            while len(gaps) < 5 or min(gaps[1:]) > 0.15:
                await asyncio.sleep(0.002)
                fed, now = manager.heard().count("WATCHDOG=1"), time.monotonic()
                assert fed <= 1 + (now - at) / 0.1
                if fed:
                    gaps.append(now - at)
                    at = now
        time.sleep(0.4)  # a loop that hangs ...
        assert manager.heard() == []  # ... is silent for longer than the limit
        await asyncio.sleep(0.15)
        assert "WATCHDOG=1" in manager.heard()
    await asyncio.sleep(0.2)
    assert manager.heard() == []


async def test_a_status_is_sent_when_it_changes(manager: Manager) -> None:
    status = "not ready: no tracker"
    with Notifier(manager.address, watchdog_s=0.1) as notifier:
        notifier.ready(lambda: status)
        await asyncio.sleep(0.12)
        status = "ready"
        await asyncio.sleep(0.12)
    told = [message for message in manager.heard() if message != "WATCHDOG=1"]
    assert told == ["READY=1\nSTATUS=not ready: no tracker", "READY=1\nSTATUS=ready"]


async def test_ready_is_repeated_until_the_manager_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "late")
    with Notifier(path, watchdog_s=0.1) as notifier:
        notifier.ready(lambda: "up")
        late = Manager(path)
        await asyncio.sleep(0.12)
    assert "READY=1\nSTATUS=up" in late.heard()
    late.socket.close()


async def test_without_a_manager_nothing_is_sent() -> None:
    with Notifier.from_environ({}) as notifier:
        notifier.ready(lambda: pytest.fail("nobody wants to know"))
        notifier.stopping("")


def test_the_environment() -> None:
    own, other = str(os.getpid()), str(os.getpid() + 1)
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}
    assert Notifier.from_environ(environ).watchdog_s == 30.0
    assert Notifier.from_environ(environ | {"WATCHDOG_PID": own}).watchdog_s == 30.0
    assert Notifier.from_environ(environ | {"WATCHDOG_PID": other}).watchdog_s == 0.0
    assert Notifier.from_environ(environ | {"WATCHDOG_USEC": "soon"}).watchdog_s == 0.0


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative", "@", "/"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="NOTIFY_SOCKET"):
        Notifier(address)

"""An agent that hangs is told from a slow one, in seconds, and nothing is waited for in silence."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2pcache.errors import Busy, Unreachable
from p2pcache.io.http import endpoint, patience
from p2pcache.io.http.client import AgentClient

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n{"ready": 1}'
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n"
EVENTS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b'16\r\n{"event": "resolved"}\n\r\n'
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SAY_S", 0.3)
    monkeypatch.setattr(endpoint, "SAY_S", 0.3)


@contextlib.contextmanager
def serving(path: Path, answer: Callable[[bytes, socket.socket], None]) -> Iterator[str]:
    """An agent's socket on which each request's head is answered on a thread of its own."""

    def serve(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            answer(peer.recv(65536), peer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=accept, daemon=True).start()
        yield f"unix://{path}"
        listener.shutdown(socket.SHUT_RDWR)


def test_one_that_hangs_is_named_within_seconds(tmp_path: Path) -> None:
    said: list[str] = []
    with serving(tmp_path / "s", lambda _head, _peer: time.sleep(5)) as address:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"hangs: .*; look at its log .*, then restart it"):
            AgentClient(address, say=said.append).models()
    assert time.monotonic() - began < 5
    assert len(said) == patience.UNANSWERED
    assert "waiting for the agent" in said[0]


def test_one_that_is_slow_and_well_is_waited_for(tmp_path: Path) -> None:
    def answer(head: bytes, peer: socket.socket) -> None:
        if b"/healthz" not in head:
            time.sleep(1.5)
        peer.sendall(OK)

    said: list[str] = []
    with serving(tmp_path / "s", answer) as address:
        assert AgentClient(address, say=said.append).status() == {"ready": 1}
    assert said


def test_one_that_hangs_in_the_middle_of_a_stream_is_named(tmp_path: Path) -> None:
    def answer(head: bytes, peer: socket.socket) -> None:
        if b"/v1/pull" in head:
            peer.sendall(EVENTS)
        time.sleep(5)

    with serving(tmp_path / "s", answer) as address:
        events = AgentClient(address).pull("m:v1")
        assert next(events)["event"] == "resolved"
        with pytest.raises(Unreachable, match="hangs"):
            next(events)


def test_one_that_stays_busy_is_not_waited_for_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "RETRY_S", 2.0)
    said: list[str] = []
    with (
        serving(tmp_path / "s", lambda _head, peer: peer.sendall(BUSY)) as address,
        pytest.raises(Busy),
    ):
        AgentClient(address, say=said.append).status()
    assert "is busy" in said[0]


def test_a_name_that_takes_long_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_args: object, **_more: object) -> None:
        time.sleep(1.0)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    said: list[str] = []
    with pytest.raises(
        Unreachable, match=r"its name can't be resolved \(Temp.*; check the address"
    ):
        AgentClient("http://agent.example:7403", say=said.append).status()
    assert "waiting to reach the agent at http://agent.example:7403" in said[0]

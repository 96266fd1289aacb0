"""What `doctor` measures, where a whole command would hide it."""

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support import doctor_facts
from p2pcache.errors import NotAllowed, Unreachable
from p2pcache.io.host import probe

ADDRESSES = ("127.0.0.1", "127.0.0.2")


@contextmanager
def answering(address: str, port: int, asked: list[str]) -> Iterator[int]:
    """Answer questions for a tracker's status at an address, and note each."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/status":
                asked.append(address)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = http.server.ThreadingHTTPServer((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_each_address_of_a_trackers_name_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(_host: str, port: int, kind: socket.SocketKind) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in ADDRESSES]

    with ExitStack() as stack:
        port = stack.enter_context(answering(ADDRESSES[0], 0, asked))
        stack.enter_context(answering(ADDRESSES[1], port, asked))
        monkeypatch.setattr(probe, "look_up", look_up)
        url = f"http://trackers.example:{port}"
        settings = AgentSettings(tracker=url, cache_dir="/nowhere/at/all")
        findings = doctor_facts.examine(doctor_facts.Node(settings, "unix:///nowhere", False, ""))
    assert sorted(asked) == list(ADDRESSES)
    lines = [one.measured for one in findings if one.check == "tracker"]
    for line, address in zip(lines, ADDRESSES, strict=True):
        assert line.startswith(f"{url} ({address}): ")


def test_the_names_of_all_trackers_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, slow DNS took the time in which the trackers were to answer."""
    urls = [f"http://t{number}.example:7400" for number in range(4)]
    all_ask = threading.Barrier(len(urls), timeout=2.0)

    def addresses_of(_url: str) -> list[str]:
        all_ask.wait()
        return [""]

    def away(*_: object) -> float:
        raise Unreachable("away")

    monkeypatch.setattr(probe, "addresses_of", addresses_of)
    monkeypatch.setattr(probe, "ask", lambda *_: probe.Told())
    monkeypatch.setattr(probe, "join", away)
    found = doctor_facts._trackers(AgentSettings(tracker=",".join(urls))).findings
    assert not all_ask.broken
    assert [line.measured for line in found] == [f"{url}: away" for url in urls]


def test_a_cache_on_a_read_only_disk_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was called fine: owner and mode are, and a faulty ext4 calls itself writable."""
    monkeypatch.setattr(doctor_facts, "is_read_only", lambda _: True)
    with pytest.raises(NotAllowed, match="is read-only; mount it writable"):
        doctor_facts._cache(tmp_path, agent_runs=True)
    assert doctor_facts._cache(tmp_path / "later", agent_runs=True).level == "ok"

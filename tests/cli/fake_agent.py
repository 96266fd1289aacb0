"""A small real HTTP server on a unix socket that speaks docs/api.md from a script."""

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "FakeAgent"

    def log_message(self, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def dispatch(self) -> None:
        self.close_connection = True
        path = self.path.partition("?")[0]
        reply = self.server.replies.get(f"{self.command} {path}")
        reply = reply or self.server.replies.get(f"{self.command} *")
        if reply is None:
            self.answer(404, {"code": 3, "message": f"no {path}"})
            return
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        reply(self)

    do_GET = do_POST = do_PUT = do_DELETE = dispatch  # noqa: N815 - http.server's names

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, value: object) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, value: object) -> None:
        line = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


class FakeAgent(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Handler)
        self.address = f"unix://{path}"
        self.replies: dict[str, Reply] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are part of the tests

    def document(self, call: str, value: object, status: int = 200) -> None:
        def reply(handler: Handler) -> None:
            self.bodies.append(handler.body())
            handler.answer(status, value)

        self.replies[call] = reply

    def stream(
        self, call: str, events: Sequence[object], *, cut: bool = False, pause_s: float = 0.0
    ) -> None:
        def reply(handler: Handler) -> None:
            self.bodies.append(handler.body())
            handler.begin_stream()
            for event in events:
                handler.event(event)
                time.sleep(pause_s)
            if not cut:
                handler.end_stream()

        self.replies[call] = reply


@contextmanager
def fake_agent(folder: Path) -> Iterator[FakeAgent]:
    with FakeAgent(folder / "agent.sock") as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


HEX = "ab" * 32
LLAMA: dict[str, Any] = {
    "ref": "team/llama:v3", "namespace": "team", "name": "llama", "tags": ["v3"], "digest": HEX,
    "bytes": 140_000_000_000, "files": 30, "bytes_done": 140_000_000_000, "complete": True, "last_used": 0,
}  # fmt: skip


def resolved(ref: str = "llama:latest", size: int = 1000) -> dict[str, object]:
    return {"event": "resolved", "ref": ref, "digest": HEX, "bytes": size, "files": 2}


def progress(done: int, total: int = 1000, peers: int = 0, origin: int = 0) -> dict[str, object]:
    return {
        "event": "progress", "bytes_done": done, "bytes_total": total, "bytes_peers": peers,
        "bytes_origin": origin, "bytes_local": 0, "peers": 3, "rate": 100,
    }  # fmt: skip


def done(models_dir: Path, ref: str = "llama:latest") -> dict[str, object]:
    return {
        "event": "done", "ref": ref, "digest": HEX, "path": f"library/llama/@{HEX}", "models_dir": str(models_dir),
        "bytes": 1000, "bytes_origin": 400, "bytes_peers": 600, "bytes_local": 0, "seconds": 2.0,
    }  # fmt: skip

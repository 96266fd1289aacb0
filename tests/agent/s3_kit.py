"""A directory origin behind the S3 protocol, whose answers a test can spoil."""

import contextlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Fault = Callable[[str], tuple[int, str] | None]
"""From a key to (status, code) of a refusal; None: all is well."""

BUCKET = "models"


class Storage:
    """What the server answers with; `fault` may change while it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fault: Fault = lambda _: None
        self.reads: list[str] = []  # keys


def _handler(storage: Storage) -> Any:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            key = self.path.partition("?")[0].removeprefix(f"/{BUCKET}/")
            storage.reads.append(key)
            found = storage.fault(key)
            file = storage.root / key
            if found is None and not file.is_file():
                found = (404, "NoSuchKey")
            if found is not None:
                said = f"<Error><Code>{found[1]}</Code><Message>said of {key}</Message></Error>"
                return self._answer(found[0], said.encode())
            data = file.read_bytes()
            match = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if match is None:
                return self._answer(200, data)
            return self._answer(206, data[int(match[1]) : int(match[2]) + 1])

        do_HEAD = do_GET  # noqa: N815 - http.server calls it so

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def s3(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Serve a directory origin as `s3://models`, for clients of this process."""
    storage = Storage(root)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(storage))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield storage
    server.shutdown()
    thread.join()
    server.server_close()

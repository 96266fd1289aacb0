"""A web server and a stand-in for a model hub, whose every answer a test can spoil."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0" * 20
Answer = tuple[int, dict[str, str], bytes]
Spoil = Callable[[str, dict[str, str]], Answer | None]
"""From a path and the request's headers (lower case) to another answer; None: the usual one."""


class Web:
    """Files behind HTTP, with ranges and ETags. `files` and `spoil` may change while it runs."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  # by path, with the slash
        self.types: dict[str, str] = {}
        self.ranges = True  # False: as `python -m http.server`, whole files only and no ETags
        self.spoil: Spoil = lambda _path, _headers: None
        self.seen: list[tuple[str, str, dict[str, str]]] = []  # method, path, headers
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self) -> list[str]:
        """Paths that were asked for by GET."""
        return [path for method, path, _ in self.seen if method == "GET"]

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        data = self.files.get(unquote(urlsplit(path).path))
        if data is None:
            return 404, {}, b""
        tag = '"' + hashlib.md5(data).hexdigest() + '"'
        more = {"Content-Type": self.types.get(path, "application/octet-stream")}
        if not self.ranges:
            return 200, more, data
        more["ETag"] = tag
        if headers.get("if-match", tag) != tag:
            return 412, more, b""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if match is None:
            return 200, more, data
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        more["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return 206, more, data[first : last + 1]


class Hub(Web):
    """A hub of one repository `org/model`. Large files are redirected to another site, as a real hub does."""

    def __init__(self, cdn: Web, page: int = 2) -> None:
        super().__init__()
        self.cdn = cdn
        self.page = page
        self.repo: dict[str, bytes] = {}
        self.lfs: set[str] = set()
        self.token = ""

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        parts = urlsplit(path)
        if parts.path in (
            "/api/models/org/model/revision/main", f"/api/models/org/model/revision/{COMMIT}",
            "/api/models/org/model/revision/v1%2Fx",
        ):  # fmt: skip
            siblings = [{"rfilename": name} for name in self.repo]
            return _json(
                {
                    "id": "org/model",
                    "sha": COMMIT,
                    "siblings": siblings,
                    "private": False,
                    "tags": [],
                }
            )
        if parts.path == f"/api/models/org/model/tree/{COMMIT}":
            names = sorted(self.repo)
            first = int(parts.query.partition("cursor=")[2] or "0")
            found = _json([self.entry(name) for name in names[first : first + self.page]])
            if first + self.page < len(names):
                link = f"{self.url}{parts.path}?recursive=true&cursor={first + self.page}"
                found[1]["Link"] = f'<{link}>; rel="next"'
            return found
        name = unquote(parts.path).removeprefix(f"/org/model/resolve/{COMMIT}/")
        if name not in self.repo:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        entry = self.entry(name)
        more = {"X-Repo-Commit": COMMIT, "ETag": f'"{entry["oid"]}"', "Accept-Ranges": "bytes"}
        if name in self.lfs:
            self.cdn.files[f"/cdn/{entry['oid']}"] = self.repo[name]
            more |= {
                "X-Linked-Etag": f'"{entry["lfs"]["oid"]}"', "X-Linked-Size": str(entry["size"]),
                "Location": f"{self.cdn.url}/cdn/{entry['oid']}?Signature=secret",
            }  # fmt: skip
            return 302, more, b""
        self.files[unquote(parts.path)] = self.repo[name]
        status, usual, data = super().answer(parts.path, headers)
        return status, usual | more, data

    def entry(self, name: str) -> dict[str, Any]:
        data = self.repo[name]
        oid = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        found: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        if name in self.lfs:
            sha256 = hashlib.sha256(data).hexdigest()
            found["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
        return found


def _json(document: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()


@contextlib.contextmanager
def serving(web: Web, host: str = "127.0.0.1") -> Iterator[Web]:
    """Serve for the length of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            web.seen.append((self.command, self.path, headers))
            spoilt = web.spoil(self.path, headers)
            status, more, body = spoilt if spoilt is not None else web.answer(self.path, headers)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

        do_HEAD = do_POST = do_GET  # noqa: N815 - http.server calls them so

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    web.port = server.server_port
    with answering(server):
        yield web


@contextlib.contextmanager
def answering(server: http.server.ThreadingHTTPServer) -> Iterator[None]:
    """Let a server answer for the length of the block, on a thread; then close it."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def anonymous_hub(
    monkeypatch: pytest.MonkeyPatch, home: Path, repo: dict[str, bytes], lfs: set[str]
) -> Iterator[Hub]:
    """A hub of these files for clients that have no account; `home`: of their settings."""
    monkeypatch.setenv("HF_HOME", str(home))
    for name in ("HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with serving(Web()) as cdn, serving(Hub(cdn)) as one:
        assert isinstance(one, Hub)
        one.repo, one.lfs = dict(repo), lfs
        yield one

"""Questions to other sites' doors: what comes is checked before it is written, and hostile answers end."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import InvalidTorrent, NotFound, P2PCacheError, Unreachable
from p2pcache.io.torrents import finding
from p2pcache.io.torrents.finding import MANIFEST, TORRENT, Found, find
from p2pcache.io.torrents.making import make_torrent
from tests.io.torrents.kit import FILES, of_bytes, ours, published

ANNOUNCE = b"d8:completei1e8:intervali300e5:peers6:\x0a\x00\x00\x01\x1c\xeee"  # 10.0.0.1, port 7406


@contextmanager
def door(*answers: tuple[int, bytes]) -> Iterator[str]:
    """A door that gives these answers, one after the other, and the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "http://127.0.0.1:9/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_first_site_that_has_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "AGAIN_S", 0.01)
    (tmp_path / "x").mkdir()
    digest, manifest = published(tmp_path)
    torrent = make_torrent(tmp_path, manifest)
    soon = b"d14:failure reason30:this agent doesn't seed it yete"
    with (
        door((404, b"")) as none,
        door((503, b""), (200, torrent), (200, soon), (200, torrent), (200, ANNOUNCE)) as has,
    ):
        sites = ["127.0.0.1:9", none, has]
        assert find("acme/m", digest, tmp_path / "x", sites) == Found(has, "127.0.0.1:7406")
        assert (tmp_path / "x" / MANIFEST).read_bytes() == manifest
        assert (tmp_path / "x" / TORRENT).read_bytes() == torrent
        with pytest.raises(NotFound):
            find("acme/m", digest, tmp_path / "x", [none])
        with pytest.raises(Unreachable):  # this may pass; that the other lacks it may not
            find("acme/m", digest, tmp_path / "x", ["127.0.0.1:9", none])


def test_strangers_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_TORRENT_BYTES", 100_000)
    digest, _ = published(tmp_path)
    (tmp_path / "other").mkdir()
    other = ours(tmp_path / "other", FILES | {"more": b"x"})
    hostile: list[tuple[bytes, type[P2PCacheError], int]] = [
        (bytes(200_000), InvalidTorrent, 200),
        (b"<html>", InvalidTorrent, 200),
        (of_bytes(f"@{digest}", b"xyz" * 9), InvalidTorrent, 200),  # without a manifest
        (other, InvalidTorrent, 200),
        (b"", Unreachable, 302),
    ]
    for body, kind, status in hostile:
        with door((status, body)) as site, pytest.raises(kind):
            find("acme/m", digest, tmp_path, [site])
        assert not (tmp_path / TORRENT).exists()


def test_a_site_whose_answer_never_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time."""
    monkeypatch.setattr(finding, "WHOLE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            flow, _ = listener.accept()
            with flow, contextlib.suppress(OSError):
                for _ in range(500):
                    flow.sendall(b"H")
                    time.sleep(0.02)

        thread = threading.Thread(target=trickle)
        thread.start()
        began = time.monotonic()
        with pytest.raises(Unreachable):
            find("acme/m", "ab" * 32, tmp_path, [f"127.0.0.1:{listener.getsockname()[1]}"])
        assert time.monotonic() - began < 5  # the bytes last for ten
        thread.join(10)


@pytest.mark.parametrize(
    "said", [b"", b"i1e", b"de", b"d5:peers2:abe", b"d5:peersi1ee", b"d6:peers63:abce"]
)
def test_an_announce_that_makes_no_sense(said: bytes) -> None:
    with pytest.raises(InvalidTorrent):
        finding._port("site", said)

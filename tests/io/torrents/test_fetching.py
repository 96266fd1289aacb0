"""Downloads of torrents, with real sources: who is asked, what is kept, and what is proved."""

import contextlib
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import InvalidTorrent, NoSpace, UsageError
from p2pcache.io.torrents import fetching
from p2pcache.io.torrents.fetching import FILES, Fetching, Ways
from p2pcache.io.torrents.metainfo import read_metainfo
from tests.io.torrents.kit import of_bytes, ours

DATA = os.urandom(200_000)
HERE = Ways(local=True)


@contextlib.contextmanager
def web_server(
    folder: Path, host: str = "127.0.0.1", redirect: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """A plain web server; its URL, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            if redirect:
                self.send_response(302)
                self.send_header("Location", redirect + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self._send()

        def _send(self) -> None:
            data = Path(self.translate_path(self.path)).read_bytes()
            part = self.headers.get("Range", "")
            first, last = (part.removeprefix("bytes=") or f"0-{len(data) - 1}").split("-")
            body = data[int(first) : int(last) + 1]
            self.send_response(206 if part else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_address() -> str:
    from p2pcache.io.http.own_addresses import first_address

    return first_address() or pytest.skip("this machine has no address but loopback")


def fetch(torrent: bytes, folder: Path, ways: Ways = HERE, looks: int = 200) -> Fetching:
    """Follow a download to its end, or for so many looks."""
    with Fetching(ways) as session:
        for _ in itertools.islice(session.steps_of(read_metainfo(torrent), folder), looks):
            pass
    return session


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LOOK_MS", 50)


def test_nobody_on_this_machine_is_asked_unless_the_operator_says_so(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA)
    with web_server(tmp_path) as (url, asked):
        port = url.rpartition(":")[2]
        lists = {"url-list": [f"{url}/".encode(), f"http://localhost:{port}/".encode()],
                 "announce": f"{url}/announce".encode()}  # fmt: skip
        torrent = of_bytes("w.bin", DATA, **lists)
        session = fetch(torrent, tmp_path / "a", Ways(), looks=10)
        assert asked == []
        assert len(session.left_out) == 3
        assert not session.has_source
        fetch(torrent, tmp_path / "b")
        assert "/w.bin" in asked
    assert (tmp_path / "b" / FILES / "w.bin").read_bytes() == DATA


def test_a_redirect_to_this_machine_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA)
    with web_server(tmp_path) as (url, secret):
        with web_server(tmp_path, own_address(), redirect=url) as (outer, asked):
            more = {"url-list": f"{outer}/".encode(), "announce": f"{outer}/announce".encode()}
            fetch(of_bytes("w.bin", DATA, **more), tmp_path / "a", Ways(), looks=40)
        assert asked
        assert secret == []


def test_a_lying_web_seed_brings_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(len(DATA)))
    with web_server(tmp_path) as (url, asked):
        torrent = of_bytes("w.bin", DATA, **{"url-list": f"{url}/".encode()})
        done = 0
        with Fetching(HERE) as session:
            for at in itertools.islice(
                session.steps_of(read_metainfo(torrent), tmp_path / "a"), 25
            ):
                done = at.bytes_done
        assert asked
    assert done == 0


@pytest.mark.parametrize("note", [True, False])
def test_what_lay_there_is_proved_again(tmp_path: Path, note: bool) -> None:
    """A note may say more than the disk has, after a power cut."""
    (tmp_path / "w.bin").write_bytes(DATA)
    with web_server(tmp_path) as (url, asked):
        torrent = of_bytes("w.bin", DATA, **{"url-list": f"{url}/".encode()})
        fetch(torrent, tmp_path / "a")
        file = tmp_path / "a" / FILES / "w.bin"
        file.write_bytes(DATA[:60_000] + bytes(60_000) + DATA[120_000:])
        if not note:
            (tmp_path / "a/resume").unlink()
        asked.clear()
        fetch(torrent, tmp_path / "a")
        assert asked
        assert file.read_bytes() == DATA


def test_an_interrupted_download_goes_on(tmp_path: Path) -> None:
    data = os.urandom(1_500_000)
    (tmp_path / "w.bin").write_bytes(data)
    with web_server(tmp_path, own_address()) as (url, _):  # libtorrent doesn't slow loopback down
        torrent = read_metainfo(of_bytes("w.bin", data, **{"url-list": f"{url}/".encode()}))
        with Fetching(Ways(bytes_per_s=1_500_000)) as session:
            for at in session.steps_of(torrent, tmp_path / "a"):
                if at.bytes_done > 300_000:
                    break
        with Fetching(Ways(bytes_per_s=100_000)) as session:
            steps = itertools.islice(session.steps_of(torrent, tmp_path / "a"), 4)
            before = max(at.bytes_done for at in steps)
        with Fetching(Ways()) as session:
            for _ in session.steps_of(torrent, tmp_path / "a"):
                pass
    assert 300_000 < before < len(data)  # it didn't begin at nothing, and hadn't ended
    assert (tmp_path / "a" / FILES / "w.bin").read_bytes() == data


def test_a_seed_serves_a_magnet_link(tmp_path: Path) -> None:
    """The process that agents seed with, and a client that knows only an info hash and a peer."""
    torrent = ours(tmp_path)
    (tmp_path / "x.torrent").write_bytes(torrent)
    wanted = read_metainfo(torrent)
    command = [sys.executable, "-m", "p2pcache.io.torrents.seeding", "127.0.0.1:0", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as seed:
        assert seed.stdin is not None
        assert seed.stdout is not None
        port = json.loads(seed.stdout.readline())["port"]
        order = {"seed": "m", "torrent": str(tmp_path / "x.torrent"), "folder": str(tmp_path)}
        seed.stdin.write(json.dumps(order).encode() + b"\n")
        seed.stdin.flush()
        ways = Ways((f"127.0.0.1:{port}",), local=True)
        with Fetching(ways) as session:
            for _ in session.metainfo(f"magnet:?xt=urn:btmh:1220{wanted.info_hash}"):
                pass
            found = read_metainfo(session.torrent_file())
        assert (found.digest, found.files) == (wanted.digest, wanted.files)
        fetch(found.data, tmp_path / "a", ways)
        seed.stdin.close()
        assert seed.wait(10) == 0  # it ends with the agent
    for file in wanted.files:
        got = tmp_path / "a" / FILES / wanted.name / file.path
        assert got.read_bytes() == (tmp_path / wanted.name / file.path).read_bytes()


def test_a_torrent_that_does_not_fit_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(NoSpace, match="--staging"):
        fetch(of_bytes("w.bin", DATA), tmp_path / "a")


@pytest.mark.parametrize("magnet", ["magnet:?", "magnet:?xt=urn:btih:zz", "magnet:?" + "x" * 9000])
def test_bad_magnets(magnet: str) -> None:
    with Fetching(HERE) as session, pytest.raises(InvalidTorrent):
        next(session.metainfo(magnet))


@pytest.mark.parametrize("peer", ["nonsense", "host:99999", "127.0.0.1:6881", "169.254.1.1:80"])
def test_bad_peers(peer: str) -> None:
    with pytest.raises(UsageError, match="peer"):
        Fetching(Ways((peer,)))

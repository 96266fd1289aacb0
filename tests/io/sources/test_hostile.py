"""Servers that lead elsewhere, lie or list nonsense: clear errors, and no request to where it wasn't allowed."""

import contextlib
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import (
    IntegrityError,
    NotAllowed,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.imports.importing import Importing
from p2pcache.io.sources.base import SourceFile, checked
from p2pcache.io.sources.guarded_connections import Guard, Site
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.kit import COMMIT, Answer, Hub, Web, serving
from tests.io.sources.test_conformance import read


@pytest.fixture(autouse=True)
def _home(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_env.setenv("HF_HOME", str(tmp_path))
    clean_env.setenv("NETRC", str(tmp_path / "netrc"))
    clean_env.delenv("HF_TOKEN", raising=False)
    clean_env.delenv("HF_ENDPOINT", raising=False)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as one:
        one.files["/m/a.bin"] = b"a" * 1000
        one.files["/m/SHA256SUMS"] = f"{hashlib.sha256(b'a' * 1000).hexdigest()}  a.bin\n".encode()
        yield one


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Web()) as cdn, serving(Hub(cdn)) as one:
        assert isinstance(one, Hub)
        one.repo = {"a.bin": b"a" * 2000, "config.json": b"{}"}
        one.lfs = {"a.bin"}
        yield one


def source_of(url: str, **more: object) -> Source:
    source = Source("s", SourceSettings(url=url, **more))  # type: ignore[arg-type]
    source._policy.retry_for_s = 0.0
    return source


def to(place: str) -> Answer:
    return 302, {"Location": place}, b""


@pytest.mark.parametrize(
    ("address", "own", "literal", "private", "good"),
    [
        ("93.184.216.34", False, False, False, True),
        ("127.0.0.1", False, False, False, False),
        ("10.1.2.3", False, False, False, False),
        ("::1", False, False, False, False),
        ("::ffff:10.0.0.1", False, False, False, False),
        ("fd00::1", False, False, False, False),
        ("0.0.0.0", False, False, False, False),
        ("224.0.0.1", False, False, True, True),
        ("10.1.2.3", False, False, True, True),
        ("10.1.2.3", True, False, False, True),
        ("127.0.0.1", True, True, False, True),
        ("169.254.169.254", False, False, False, False),
        ("169.254.169.254", False, True, True, False),
        ("169.254.169.254", True, False, True, False),
        ("fe80::1", False, False, True, False),
        ("169.254.1.1", True, True, False, True),
    ],
)
def test_which_addresses_may_be_connected_to(
    address: str, own: bool, literal: bool, private: bool, good: bool
) -> None:
    guard = Guard(Site("http", "h", 80), private=private)
    assert guard._good(address, own=own, literal=literal) is good


def test_no_redirect_leads_into_this_host(web: Web) -> None:
    with serving(Web()) as inside:
        inside.files["/secret"] = b"s" * 1000
        web.spoil = lambda path, _: to(f"{inside.url}/secret") if path == "/m/a.bin" else None
        source = source_of(web.url)
        with pytest.raises(NotAllowed, match="private = true"):
            source.files("m/a.bin")
        assert not inside.seen
        file = SourceFile("a.bin", "m/a.bin", 1000)
        with pytest.raises(NotAllowed):
            read(source, file)
        assert not inside.seen
        # The operator may allow it; link-local addresses stay forbidden.
        assert read(source_of(web.url, private=True), file) == b"s" * 1000
    web.spoil = lambda _path, _headers: to("http://169.254.169.254/latest/meta-data/")
    with pytest.raises(NotAllowed, match="link-local"):
        source_of(web.url, private=True).files("m/a.bin")
    web.spoil = lambda _path, _headers: to(f"{web.url}/m/a.bin")
    with pytest.raises(NotAllowed, match="more than 5 times"):
        source_of(web.url).files("m/a.bin")
    for place in ("file:///etc/passwd", "ftp://h/x", "http://[", "gopher://127.0.0.1/"):
        web.spoil = lambda _path, _headers, place=place: to(place)  # type: ignore[misc]
        with pytest.raises(UsageError, match="not an http or https URL"):
            source_of(web.url).files("m/a.bin")


def test_credentials_go_to_the_named_server_alone(web: Web, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
    (tmp_path / "netrc").chmod(0o600)
    with serving(Web()) as other:
        other.files["/b"] = b"a" * 1000
        web.spoil = lambda path, _: to(f"{other.url}/b") if path == "/m/a.bin" else None
        source = source_of(web.url, private=True)
        (file,) = source.files("m/SHA256SUMS")
        assert read(source, file) == b"a" * 1000
        assert all("authorization" not in headers for _, _, headers in other.seen)
        assert all(headers["authorization"].startswith("Basic ") for _, _, headers in web.seen)
        assert other.seen


def test_a_hubs_token_and_its_files(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_hush"
    source = source_of("hf://", endpoint=hub.url, private=True)
    with pytest.raises(NotAllowed, match="HF_TOKEN"):
        source.files("org/model")
    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    source = source_of("hf://", endpoint=hub.url, private=True)
    found = {file.path: file for file in source.files("org/model@v1/x")}
    assert found["a.bin"].key == f"org/model@{COMMIT}/a.bin"
    assert found["a.bin"].sha256 == hashlib.sha256(b"a" * 2000).digest()
    assert [read(source, file) for file in found.values()] == [b"a" * 2000, b"{}"]
    assert all("authorization" not in headers for _, _, headers in hub.cdn.seen)
    assert hub.cdn.seen


def test_a_hub_gets_no_login_of_netrc(hub: Hub, tmp_path: Path) -> None:
    """Its credentials are its own; one for another server on the same host is no business of it."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password hush\n")
    (tmp_path / "netrc").chmod(0o600)
    assert source_of("hf://", endpoint=hub.url, private=True).files("org/model@v1/x")
    assert not [1 for _, _, headers in hub.seen if "authorization" in headers]


def test_the_stand_in_is_a_hub_for_the_hubs_own_client(hub: Hub, tmp_path: Path) -> None:
    code = "from huggingface_hub import snapshot_download as s; print(s('org/model'), end='')"
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (Path(ran.stdout) / "a.bin").read_bytes() == b"a" * 2000
    assert (Path(ran.stdout) / "config.json").read_bytes() == b"{}"


def test_a_hub_of_one_owner(hub: Hub) -> None:
    source = source_of("hf://org", endpoint=hub.url, private=True)
    found = source.files("model")
    assert [file.key for file in found] == [f"model@{COMMIT}/a.bin", f"model@{COMMIT}/config.json"]
    assert read(source, found[1]) == b"{}"
    with pytest.raises(UsageError):
        source.files("../other/model")


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../x"}, {"path": "/etc/passwd"}, {"path": "a//b"}, {"path": "a\x00b"}, {"size": -1},
        {"path": "x" * 2000}, {"lfs": {"oid": "zz", "size": 1}}, {"path": "config.json"}, {"size": 1e30},
        {"lfs": {"oid": "ab" * 31, "size": 1}}, {"oid": "\n"},
    ],
)  # fmt: skip
def test_hostile_trees(hub: Hub, entry: dict[str, object]) -> None:
    good = {"type": "file", "path": "b.bin", "oid": "0" * 40, "size": 1}
    listed = json.dumps([hub.entry("config.json"), good | entry]).encode()
    hub.spoil = lambda path, _: (200, {}, listed) if "/tree/" in path else None
    with pytest.raises(P2PCacheError) as caught:
        source_of("hf://", endpoint=hub.url, private=True).files("org/model")
    assert caught.value.exit_code in (2, 6)


def test_an_endless_tree_ends(hub: Hub) -> None:
    numbers = itertools.count()

    def page(path: str, _: dict[str, str]) -> Answer | None:
        if "/tree/" not in path:
            return None
        names = [f"f{next(numbers)}" for _ in range(20_000)]
        listed = [{"type": "file", "path": name, "oid": "0" * 40, "size": 1} for name in names]
        link = f'<{hub.url}/api/models/org/model/tree/{COMMIT}?cursor=1>; rel="next"'
        return 200, {"Link": link}, json.dumps(listed).encode()

    hub.spoil = page
    with pytest.raises(UsageError, match="more than 100,000 files"):
        source_of("hf://", endpoint=hub.url, private=True).files("org/model")
    assert next(numbers) <= 140_000
    hub.spoil = lambda path, _: (200, {}, b"[" * 20_000_000) if "/tree/" in path else None
    with pytest.raises(UsageError, match="too much for a list"):
        source_of("hf://", endpoint=hub.url, private=True).files("org/model")
    elsewhere = {"Link": '<http://127.0.0.1:1/x>; rel="next"'}
    hub.spoil = lambda path, _: (200, elsewhere, b"[{}]") if "/tree/" in path else None
    with pytest.raises(P2PCacheError):
        source_of("hf://", endpoint=hub.url, private=True).files("org/model")


def test_lists_name_files_beside_them_only(web: Web) -> None:
    for line in ("../secret", "/etc/passwd", "http://elsewhere/x", f"{web.url}/other/x", "a\x01b"):
        web.files["/m/SHA256SUMS"] = f"{'0' * 64}  {line}\n".encode()
        with pytest.raises(P2PCacheError) as caught:
            source_of(web.url).files("m/SHA256SUMS")
        assert caught.value.exit_code in (2, 6), line
    web.files["/m/x.list"] = f"# files\n{web.url}/m/a.bin\n".encode()
    (file,) = source_of(web.url).files("m/x.list")
    assert (file.path, file.key, file.size) == ("a.bin", "m/a.bin", 1000)
    web.files["/m/x.list"] = b"a.bin\n" * 100_001
    with pytest.raises(UsageError, match="more than 100,000"):
        source_of(web.url).files("m/x.list")


def test_servers_that_lie_about_ranges(web: Web) -> None:
    source = source_of(web.url)
    (file,) = source.files("m/a.bin")
    whole = b"a" * 1000
    tag = {"ETag": file.validator.removeprefix("etag:")}
    for answer, error in (
        ((200, tag, whole), UsageError),
        (
            (
                206,
                {**tag, "Content-Range": "bytes 10-19/1000", "Content-Encoding": "gzip"},
                whole[:10],
            ),
            UsageError,
        ),
        ((206, {**tag, "Content-Range": "bytes 0-9/1000"}, whole[:10]), OriginChanged),
        ((206, {**tag, "Content-Range": "bytes 10-19/999"}, whole[:10]), OriginChanged),
        ((206, {"ETag": '"new"', "Content-Range": "bytes 10-19/1000"}, whole[:10]), OriginChanged),
        ((206, tag, whole[:10]), OriginChanged),
        ((500, {}, b""), P2PCacheError),
    ):
        web.spoil = lambda _path, _headers, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(error):
            read(source, file, 10, 10)


def test_bytes_that_are_not_those_of_the_stated_sha256(web: Web, tmp_path: Path) -> None:
    web.files["/m/SHA256SUMS"] = f"{'0' * 64}  a.bin\n".encode()
    source = source_of(web.url)
    files = source.files("m/SHA256SUMS")
    folder = ImportFolder(tmp_path / "f")
    with pytest.raises(IntegrityError, match="another SHA-256"):
        Importing(source, files, folder, keep=True).read_files()
    assert folder.whole(files[0]) is None
    assert not folder.part("a.bin").exists()
    folder.close()


@contextlib.contextmanager
def sending(head: bytes, piece: bytes = b"") -> Iterator[str]:
    """The URL of a server that answers one request with this head, and then with pieces for ever."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            with contextlib.suppress(OSError):
                flow, _ = listener.accept()
                with flow:
                    flow.recv(65536)
                    flow.sendall(head)
                    while piece and not over.wait(0.02):
                        flow.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(0.5)
        alive = thread.is_alive()
        over.set()
        thread.join(10)
        assert not alive, "the connection was kept"


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (HEAD + b"Content-Length: 100000000\r\n\r\n", b"x" * 70_000),
        (b"", b"H"),  # a status line without an end
        (HEAD + b"X-Long: ", b"y"),
        (b"HTTP/1.1 302 Found\r\nLocation: //127.0.0.2/b\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n"),
        (b"HTTP/1.1 302 Found\r\nLocation: //127.0.0.2/b\r\nContent-Length: 60000\r\n\r\n", b"z"),
    ],
    ids=["body", "status", "header", "endless redirect", "slow redirect"],
)  # fmt: skip
def test_an_answer_that_trickles_ends(
    monkeypatch: pytest.MonkeyPatch, head: bytes, piece: bytes
) -> None:
    """Each byte comes in time, but there is no end."""
    monkeypatch.setattr("p2pcache.io.sources.guarded_http.SMALL_S", 0.2)
    monkeypatch.setattr("p2pcache.io.sources.guarded_connections.HEAD_S", 0.2)
    with sending(head, piece) as url:
        source = source_of(url)
        redirects = b"Location" in head
        with pytest.raises(NotAllowed if redirects else OriginUnavailable):
            source.files("m/SHA256SUMS")
        source.close()


@pytest.mark.parametrize("length", ["x", "-5", "1e9", "\u00b2", "9" * 5000])
def test_lengths_that_are_none(length: str) -> None:
    for head in ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2/b", "HTTP/1.1 200 OK"):
        with sending(f"{head}\r\nContent-Length: {length}\r\n\r\n".encode("latin-1")) as url:
            source = source_of(url)
            with pytest.raises(P2PCacheError) as caught:
                read(source, SourceFile("a", "a", 100), 0, 10)
            assert type(caught.value) is not P2PCacheError
            source.close()


def test_at_most_so_many_files() -> None:
    many = (SourceFile(f"f{n}", f"f{n}", 1) for n in range(1_000_000))
    with pytest.raises(UsageError, match="more than 100,000 files"):
        list(checked(many, "s"))
    assert next(many).path == "f100001"

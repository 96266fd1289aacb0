"""Artifacts of a registry as source: a real registry, and one that lies."""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.registry import LOGIN, registry
from p2pcache.errors import IntegrityError, NotAllowed, NotFound, OriginChanged, UsageError
from p2pcache.io.sources import SourceFile, SourceSettings, open_reader
from p2pcache.io.sources.base import NoRanges, SourceReader
from tests.io.sources.kit import answering
from tests.io.sources.registry_kit import TokenServer, needs_registry, pack, password_auth

WEIGHTS = random.Random(3).randbytes(300_000)
FILES = {"config.json": b"{}", "sub/w.safetensors": WEIGHTS, "same.json": b"{}", "\u00fc.txt": b"u"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody is logged in anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def log_in(home: Path, registry: str) -> None:
    (home / ".docker").mkdir(parents=True)
    auth = base64.b64encode(":".join(LOGIN).encode()).decode()
    (home / ".docker/config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def read(reader: SourceReader, file: SourceFile, start: int = 0, length: int = -1) -> bytes:
    length = file.size if length < 0 else length
    data = bytearray(length)
    done = 0
    with reader.open(file, start, length) as body:
        while count := body.readinto(memoryview(data)[done:]):
            done += count
    return bytes(data[:done])


def opened(address: str, part: str = "", *, private: bool = False) -> SourceReader:
    return open_reader(SourceSettings(url=f"oci://{address}{part}", private=private))


@needs_registry
def test_a_real_registry(tmp_path: Path) -> None:
    with registry(tmp_path) as running:
        running.push(pack(tmp_path / "packed", FILES), "acme/tiny:v1")
        reader = opened(running.address)
        listed = {file.path: file for file in reader.files("acme/tiny:v1")}
        assert {path: read(reader, file) for path, file in listed.items()} == FILES
        weights = listed["sub/w.safetensors"]
        assert weights.sha256 == hashlib.sha256(WEIGHTS).digest()
        assert read(reader, weights, 1000, 2000) == WEIGHTS[1000:3000]
        below = opened(running.address, "/acme")
        assert [file.key for file in below.files("tiny:v1")] == [
            file.key.removeprefix("acme/") for file in listed.values()
        ]
        for missing in ("acme/tiny:v2", "acme/none", f"acme/tiny@sha256:{'0' * 64}"):
            with pytest.raises(NotFound, match="no artifact"):
                list(reader.files(missing))
        gone = weights._replace(key=f"acme/tiny@sha256:{'0' * 64}")
        with pytest.raises(NotFound):
            reader.open(gone, 0, 10)
        with pytest.raises(OriginChanged):
            reader.open(weights._replace(size=7), 0, 5)


@needs_registry
def test_a_registry_that_wants_a_password(tmp_path: Path, home: Path) -> None:
    with registry(tmp_path, password_auth(tmp_path)) as running:
        running.push(pack(tmp_path / "packed", FILES), "acme/tiny:v1")
        with pytest.raises(NotAllowed, match="podman login"):
            list(opened(running.address).files("acme/tiny:v1"))
        log_in(home, running.address)
        reader = opened(running.address)
        (found,) = (file for file in reader.files("acme/tiny:v1") if file.path == "config.json")
        assert read(reader, found) == b"{}"


@needs_registry
def test_a_registry_that_wants_tokens(tmp_path: Path, home: Path) -> None:
    tokens = TokenServer(tmp_path)
    with tokens.running(), registry(tmp_path, tokens.auth) as running:
        running.push(pack(tmp_path / "packed", FILES), "acme/tiny:v1")
        tokens.asked.clear()
        with pytest.raises(NotAllowed, match="podman login"):
            list(opened(running.address, private=True).files("acme/tiny:v1"))
        assert tokens.asked == [("repository:acme/tiny:pull", False)]
        log_in(home, running.address)
        # The realm is on another port of this host, where the registry may lead us only if the operator says so.
        with pytest.raises(NotAllowed, match="private"):
            list(opened(running.address).files("acme/tiny:v1"))
        reader = opened(running.address, private=True)
        listed = list(reader.files("acme/tiny:v1"))
        assert {file.path: read(reader, file) for file in listed} == FILES
        assert tokens.asked[1:] == [("repository:acme/tiny:pull", True)]  # one token for all


@pytest.mark.parametrize(
    "url",
    ["oci://", "oci:///x", "oci://user:pw@reg", "oci://reg?x", "oci://reg/Capital", "oci://reg/../x", "oci://reg:x",
     "oci://reg//x"],
)  # fmt: skip
def test_urls_that_are_no_registry(url: str) -> None:
    with pytest.raises(UsageError):
        open_reader(SourceSettings(url=url))


@pytest.mark.parametrize(
    "place",
    ["", "acme/../tiny", "/acme/tiny", "acme/tiny:", "acme/tiny:v1/x", "Acme/tiny", "acme/tiny@sha256:00", "a?b",
     "acme/tiny:v1#x", "acme/tiny:\n", "acme//tiny", "a" * 200 + ":" + "b" * 200],
)  # fmt: skip
def test_places_that_are_no_artifact(place: str) -> None:
    with pytest.raises(UsageError):
        list(opened("127.0.0.1:1").files(place))


@pytest.mark.parametrize(
    "key", ["acme/tiny", "acme/tiny:v1", "../x@sha256:" + "0" * 64, "/x@sha256:" + "0" * 64]
)
def test_keys_that_are_no_layer(key: str) -> None:
    with pytest.raises((UsageError, IntegrityError)):
        opened("127.0.0.1:1").open(SourceFile("", key, 10), 0, 10)


class Liar:
    """A registry that answers what a test says."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}  # by path
        self.heard: list[tuple[str, str]] = []  # path, and Authorization
        self.challenge = (
            ""  # of whoever asks for something of the registry and sends no Authorization
        )
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                secret = self.headers.get("Authorization", "")
                liar.heard.append((self.path, secret))
                status, headers, body = liar.answers.get(
                    self.path.partition("?")[0], (404, {}, b"")
                )
                if liar.challenge and self.path.startswith("/v2/") and not secret:
                    status, headers, body = 401, {"WWW-Authenticate": liar.challenge}, b""
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator["Liar"]:
        with answering(self._server):
            yield self


@pytest.fixture
def liar() -> Iterator[Liar]:
    with Liar().running() as running:
        yield running


def manifest(*layers: dict[str, Any]) -> bytes:
    return json.dumps({"schemaVersion": 2, "layers": list(layers)}).encode()


LAYER = {
    "mediaType": "application/octet-stream", "size": 4, "digest": "sha256:" + hashlib.sha256(b"data").hexdigest(),
    "annotations": {"org.opencontainers.image.title": "w"},
}  # fmt: skip
PATH = "/v2/a/b/manifests/v1"


def test_a_manifest_of_other_bytes_is_refused(liar: Liar) -> None:
    data = manifest(LAYER)
    named = "sha256:" + hashlib.sha256(data).hexdigest()
    wrong = "sha256:" + "1" * 64
    liar.answers[PATH] = 200, {"Docker-Content-Digest": named}, data
    assert [file.path for file in opened(liar.address).files("a/b:v1")] == ["w"]
    liar.answers[PATH] = 200, {"Docker-Content-Digest": wrong}, data
    liar.answers[f"/v2/a/b/manifests/{wrong}"] = 200, {"Docker-Content-Digest": wrong}, data
    for place in ("a/b:v1", f"a/b@{wrong}"):
        with pytest.raises(IntegrityError, match="other bytes"):
            list(opened(liar.address).files(place))
    index = {"schemaVersion": 2, "manifests": [{"digest": wrong, "size": 1}]}
    liar.answers[PATH] = 200, {}, json.dumps(index).encode()
    with pytest.raises(IntegrityError, match="other bytes"):
        list(opened(liar.address).files("a/b:v1"))


def test_hostile_manifests(liar: Liar) -> None:
    for body, why in (
        (manifest(LAYER | {"annotations": {"org.opencontainers.image.title": "../../etc/passwd"}}), "normalised"),
        (manifest(LAYER, LAYER), "same file"), (b"<html>", "not a manifest"), (b"x" * (5 << 20), "4 MiB"),
    ):  # fmt: skip
        liar.answers[PATH] = 200, {}, body
        with pytest.raises(UsageError, match=why):
            list(opened(liar.address).files("a/b:v1"))


def test_a_registry_leads_nowhere_private_and_no_login_goes_along(liar: Liar, home: Path) -> None:
    log_in(home, liar.address)
    liar.answers[PATH] = 401, {"WWW-Authenticate": 'Basic realm="here"'}, b""
    with pytest.raises(NotAllowed, match="podman login"):
        list(opened(liar.address).files("a/b:v1"))
    assert [secret[:6] for _, secret in liar.heard] == ["", "Basic "]
    with Liar().running() as other:
        for realm in (
            f"http://{other.address}/t",
            "http://169.254.169.254/t",
            "http://localhost:1/t",
        ):
            liar.answers[PATH] = (
                401,
                {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'},
                b"",
            )
            with pytest.raises(NotAllowed, match="private"):
                list(opened(liar.address).files("a/b:v1"))
        for realm in ("", "file:///etc/passwd", "gopher://x/"):
            liar.answers[PATH] = 401, {"WWW-Authenticate": f'Bearer realm="{realm}"'}, b""
            with pytest.raises(UsageError):
                list(opened(liar.address).files("a/b:v1"))
        # Blobs may lie elsewhere: the redirect is followed where it is allowed, without our token.
        liar.answers |= {
            "/t": (200, {}, b'{"token":"abc-token"}'),
            "/v2/a/b/blobs/" + str(LAYER["digest"]): (307, {"Location": f"http://{other.address}/x"}, b""),
        }  # fmt: skip
        other.answers["/x"] = 200, {}, b"data"
        liar.challenge = f'Bearer realm="http://{liar.address}/t"'
        file = SourceFile("w", f"a/b@{LAYER['digest']}", 4)
        with pytest.raises(NotAllowed, match="private"):
            opened(liar.address).open(file, 0, 4)
        assert not other.heard
        assert liar.heard[-1][1] == "Bearer abc-token"
        assert read(opened(liar.address, private=True), file) == b"data"
        assert other.heard == [("/x", "")]


def test_a_token_that_is_none(liar: Liar) -> None:
    liar.answers[PATH] = 401, {"WWW-Authenticate": f'Bearer realm="http://{liar.address}/t"'}, b""
    for body in (b"", b"[]", b'{"token":""}', b'{"token":"a\\r\\nX: y"}', os.urandom(100)):
        liar.answers["/t"] = 200, {}, body
        with pytest.raises(Exception, match="gives no token"):
            list(opened(liar.address).files("a/b:v1"))


def test_a_registry_that_ignores_ranges(liar: Liar) -> None:
    liar.answers["/v2/a/b/blobs/" + str(LAYER["digest"])] = 200, {}, b"data"
    file = SourceFile("w", f"a/b@{LAYER['digest']}", 4)
    reader = opened(liar.address)
    assert read(reader, file) == b"data"
    with pytest.raises(NoRanges):
        reader.open(file, 1, 2)

"""Sources under test: each entry of SOURCES passes the conformance suite."""

import base64
import contextlib
import hashlib
import hmac
import importlib
import secrets
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadtest.kit.seaweed import Seaweed
from p2pcache.io.sources.azure import AzureReader
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.origins.conftest import clean_env, s3_env, seaweed  # noqa: F401 - fixtures
from tests.io.sources.kit import Hub, Web, serving
from tests.io.sources.registry_kit import HAVE_REGISTRY, pack, registry

AZURE_ACCOUNT = "devstoreaccount1"  # known to everybody, of the emulator
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class Filled(NamedTuple):
    """A source that holds a model, and how a test changes it."""

    source: Source
    place: str
    write: Callable[[str, bytes], None]  # a file of the model
    changes: bool = True  # whether a key's bytes can change
    grain_s: float = 0.0  # of the clock in its validators


@contextmanager
def _file(request: pytest.FixtureRequest) -> Iterator[Filled]:
    root: Path = request.getfixturevalue("tmp_path") / "lake here"

    def write(name: str, data: bytes) -> None:
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_bytes(data)

    root.mkdir()
    yield Filled(Source("s", SourceSettings(url=root.as_uri())), "m", write)


@contextmanager
def _s3(request: pytest.FixtureRequest) -> Iterator[Filled]:
    import botocore.session

    request.getfixturevalue("s3_env")
    server: Seaweed = request.getfixturevalue("seaweed")
    url = server.url(prefix=f"lake here/{secrets.token_hex(6)}")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    made = botocore.session.Session().create_client("s3", region_name="us-east-1")
    source = Source("s", SourceSettings(url=url))
    yield Filled(
        source, "m", lambda name, data: made.put_object(Bucket=bucket, Key=f"{prefix}/m/{name}", Body=data)
    )  # fmt: skip
    source.close()
    made.close()


@contextmanager
def _nginx(request: pytest.FixtureRequest) -> Iterator[Filled]:
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    tmp: Path = request.getfixturevalue("tmp_path")
    root = tmp / "www"
    (root / "m").mkdir(parents=True)
    kind = "json" if request.param == "nginx-json" else "html"
    port = free_port()
    config = tmp / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp}/pid; error_log {tmp}/error.log; events {{}} worker_processes 1; user root;"
        f"http {{ access_log off; client_body_temp_path {tmp}/b; proxy_temp_path {tmp}/p; fastcgi_temp_path {tmp}/f;"
        f"uwsgi_temp_path {tmp}/u; scgi_temp_path {tmp}/s; server {{ listen 127.0.0.1:{port}; root {root};"
        f"location / {{ autoindex on; autoindex_format {kind}; default_type application/octet-stream; }} }} }}"
    )
    process = subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL)

    def write(name: str, data: bytes) -> None:
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_bytes(data)

    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
                break
            except OSError:
                time.sleep(0.02)
        source = Source("s", SourceSettings(url=f"http://127.0.0.1:{port}/"))
        yield Filled(source, "m", write, grain_s=1.1)
        source.close()
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The endpoint of a real emulator of Azure's blobs (npm install azurite)."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite")
    pytest.importorskip("obstore")
    port = free_port()
    process = subprocess.Popen(
        [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent",
         "--skipApiVersionCheck"],
    )  # fmt: skip
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    finally:
        process.terminate()
        process.wait()


def make_container(endpoint: str, name: str) -> None:
    """Make a container: obstore can't."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    lines = [f"{key}:{value}" for key, value in headers.items()]
    place = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}"
    text = "PUT" + "\n" * 12 + "\n".join([*lines, place, "restype:container"])
    made = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(made).decode()}"
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


@contextmanager
def _azurite(request: pytest.FixtureRequest) -> Iterator[Filled]:
    endpoint: str = request.getfixturevalue("azurite")
    patch: pytest.MonkeyPatch = request.getfixturevalue("clean_env")
    patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    container = f"c{secrets.token_hex(6)}"
    make_container(endpoint, container)
    obstore: Any = importlib.import_module("obstore")
    source = Source("s", SourceSettings(url=f"az://{container}/lake here", endpoint=endpoint))
    reader = source.reader
    assert isinstance(reader, AzureReader)
    yield Filled(
        source, "m", lambda name, data: obstore.put(reader._store, f"m/{name}", data)
    )  # fmt: skip
    source.close()


@contextmanager
def _hub(request: pytest.FixtureRequest) -> Iterator[Filled]:
    patch: pytest.MonkeyPatch = request.getfixturevalue("clean_env")
    patch.setenv("HF_HOME", str(request.getfixturevalue("tmp_path")))
    with serving(Web()) as cdn, serving(Hub(cdn)) as hub:
        assert isinstance(hub, Hub)

        def write(name: str, data: bytes) -> None:
            hub.repo[name] = data
            if len(data) > 1000:
                hub.lfs.add(name)

        settings = SourceSettings(url="hf://", endpoint=hub.url, private=True)
        source = Source("s", settings)
        yield Filled(source, "org/model", write, changes=False)
        source.close()


@contextmanager
def _oci(request: pytest.FixtureRequest) -> Iterator[Filled]:
    if not HAVE_REGISTRY:
        pytest.skip("needs docker-registry and skopeo (make tools)")
    tmp: Path = request.getfixturevalue("tmp_path")
    files: dict[str, bytes] = {}

    def write(name: str, data: bytes) -> None:
        files[name] = data
        running.push(pack(tmp / f"packed-{len(files)}", files), "acme/m:latest")

    with registry(tmp) as running:
        source = Source("s", SourceSettings(url=f"oci://{running.address}/acme"))
        yield Filled(source, "m", write, changes=False)
        source.close()


SOURCES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Filled]]] = {
    "file": _file, "s3": _s3, "nginx-html": _nginx, "nginx-json": _nginx, "hub": _hub,
    "azurite": _azurite,
    "oci": _oci,
}  # fmt: skip


@pytest.fixture(params=list(SOURCES))
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """An empty place of each kind of source."""
    with SOURCES[request.param](request) as opened:
        yield opened


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

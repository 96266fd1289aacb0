"""A real registry (Debian's docker-registry) on loopback, filled by skopeo."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import free_ports

LOGIN = ("user", "sesame")  # of everybody who fills it


def have_registry() -> bool:
    """Whether both are installed."""
    return shutil.which("docker-registry") is not None and shutil.which("skopeo") is not None


class Registry:
    """A registry on loopback; skopeo fills it."""

    def __init__(self, address: str) -> None:
        self.address = address

    def push(self, folder: Path, image: str) -> None:
        """Copy a `dir:` into it."""
        subprocess.run(
            ["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", f"--dest-creds={':'.join(LOGIN)}",
             f"dir:{folder}", f"docker://{self.address}/{image}"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip


@contextlib.contextmanager
def registry(tmp: Path, auth: dict[str, Any] | None = None) -> Iterator[Registry]:
    """A running registry; `auth`: that part of its settings."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {
        "version": 0.1, "log": {"level": "error"}, "http": {"addr": address, "secret": "x"},
        "storage": {"filesystem": {"rootdirectory": str(tmp / "registry")}}, **({"auth": auth} if auth else {}),
    }  # fmt: skip
    (tmp / "registry.yml").write_text(json.dumps(settings))  # JSON is YAML
    with (tmp / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(tmp / "registry.yml")], stdout=log, stderr=log
        )
        try:
            _wait_for(address, tmp / "registry.log")
            yield Registry(address)
        finally:
            process.terminate()
            process.wait(10)


def _wait_for(address: str, log: Path) -> None:
    host, _, port = address.partition(":")
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text())

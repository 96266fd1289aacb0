"""nginx on loopback, over a directory."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.kit.daemons import wait_until

READY_S = 10.0


def nginx_program() -> str | None:
    """The program, where it is installed: Debian's lies where only root looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def nginx(home: Path, root: Path, port: int, *, index: str = "") -> Iterator[int]:
    """Serve a directory; yields the process id.

    Args:
        home: of the server's own files; created.
        root: what is served; all may read it.
        port: of loopback.
        index: how it lists directories: html, json, or "" for not at all.
    """
    program = nginx_program()
    assert program is not None, "needs nginx"
    home.mkdir(parents=True, exist_ok=True)
    listing = f"autoindex on; autoindex_format {index}; " if index else ""
    config = home / "nginx.conf"
    config.write_text(
        f"daemon off; pid {home}/pid; error_log {home}/error.log; worker_processes 2; user root;\n"
        f"events {{}}\nhttp {{ access_log off; sendfile on; client_body_temp_path {home}/b; proxy_temp_path {home}/p;"
        f" fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;\n"
        f" server {{ listen 127.0.0.1:{port}; root {root}; {listing}default_type application/octet-stream; }} }}\n"
    )
    served = subprocess.Popen([program, "-e", str(home / "error.log"), "-c", str(config)])
    try:
        wait_until(lambda: (home / "pid").exists() and bool((home / "pid").read_text()), READY_S)
        yield served.pid
    finally:
        served.terminate()
        served.wait(10)

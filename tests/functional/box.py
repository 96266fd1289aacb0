"""A small machine of its own: systemd as PID 1 in a container, on this system's files, thrown away at the end."""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from loadtest.kit.daemons import wait_until

ROOT = Path(__file__).parents[2]
BOOT_S = 40.0  # three seconds on an idle machine
GROUP_TREES = [Path("/sys/fs/cgroup") / name for name in ("", "systemd", "unified")]
# The overlay's upper half is memory: nothing that happens inside is left on this machine's disk.
SCRIPT = """
set -e
mount -t tmpfs -o size=1g,mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
: > "$1/root/etc/machine-id"
rm -rf "$1/root/etc/p2pcache" "$1/root/var/lib/p2pcache"
mkdir -p "$1/root/opt/p2pcache/bin" "$1/root/opt/p2pcache/site" "$1/root/opt/p2pcache/src"
cp "$1.program" "$1/root/opt/p2pcache/bin/p2pcache"
for tree in $4; do  # its services get control groups below one that is ours to remove
    mkdir "$tree" && echo 0 > "$tree/cgroup.procs"
done
exec systemd-nspawn --quiet --directory="$1/root" --boot --register=no --keep-unit --machine=box \
    --private-network --console=pipe --link-journal=no --resolv-conf=off \
    --bind-ro="$2:/opt/p2pcache/site" --bind-ro="$3:/opt/p2pcache/src" -- --unit=basic.target
"""
# As an installed p2pcache: the program file at its place, its modules readable by everybody.
PROGRAM = """#!/bin/sh
export PYTHONPATH=/opt/p2pcache/src:/opt/p2pcache/site PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 -m p2pcache.cli.main "$@"
"""


def need_box() -> None:
    """Skip the test where a box can't be had, and say why."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a container with systemd")
    for name in ("systemd-nspawn", "systemctl", "unshare", "nsenter", "setpriv", "ip"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not here; .ci/install-tools installs it")
    ask = "import sys; print(sys.version_info[:2])"
    found = subprocess.run(["/usr/bin/python3", "-c", ask], capture_output=True, text=True)
    if found.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("the container runs the system's python3, and that is another version")


class Box:
    """A context manager; the machine runs inside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "box"
        self._log = folder / "box.log"
        trees = [t for t in GROUP_TREES if (t / "cgroup.procs").exists()]
        self._groups = [t / f"p2pcache-box-{os.getpid()}" for t in trees]
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Self:
        self._folder.mkdir()
        program = self._folder.with_name("box.program")
        program.write_text(PROGRAM)
        program.chmod(0o755)
        # In a process namespace of its own: whoever dies first, nothing of it stays behind.
        command = ["setpriv", "--pdeathsig", "KILL", "--",
                   "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL",
                   "--mount-proc", "sh", "-c", SCRIPT,
                   "box", str(self._folder), sysconfig.get_path("platlib"), str(ROOT),
                   " ".join(map(str, self._groups))]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(self._booted, BOOT_S, 0.2)
        except TimeoutError:
            self._end()
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            pytest.skip(f"systemd doesn't boot in a container here: {last}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            sys.stdout.write(self.run("journalctl --no-pager -n 60", code=None))
        self._end()

    def run(self, script: str, *, code: int | None = 0, user: str = "root") -> str:
        """Run a shell script inside; its output, both streams.

        Args:
            script: of /bin/sh.
            code: the exit code that must come; None: any.
            user: as whom.
        """
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        command = [*self._enter(), "env", "-i", "--chdir=/", "PATH=/opt/p2pcache/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   *(become if user != "root" else []), "sh", "-c", script]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, start_new_session=True
        )
        output = done.stdout + done.stderr
        if code is not None:
            assert done.returncode == code, f"{script}\nended with {done.returncode}: {output}"
        return output.strip()

    def show(self, unit: str, key: str) -> str:
        """One property of a unit, as systemd sees it."""
        return self.run(f"systemctl show -P {key} {unit}")

    def signal(self, unit: str, name: str) -> None:
        """Send a signal to a unit's main process."""
        pid = int(self.show(unit, "MainPID"))
        assert pid, f"{unit} doesn't run"
        self.run(f"kill -{name} {pid}")

    def until(self, unit: str, key: str, value: str, limit_s: float = 20) -> None:
        """Wait until a property has a value."""
        wait_until(lambda: self.show(unit, key) == value, limit_s, 0.2)

    def _enter(self) -> list[str]:
        return [
            "nsenter",
            "-t",
            str(self._init),
            "-m",
            "-u",
            "-i",
            "-p",
            "-n",
            "-C",
            "--wd=/",
            "--",
        ]

    def _booted(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise TimeoutError
        if not self._init:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._init = next((c.pid for c in children if c.name() == "systemd"), 0)
        if not self._init:
            return False
        state = self.run("systemctl is-system-running", code=None)
        return state in ("running", "degraded")

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + 10
        while self._init and psutil.pid_exists(self._init) and time.monotonic() < deadline:
            time.sleep(0.05)
        for group in self._groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # a process that is ending still; it goes unseen
                    Path(folder).rmdir()

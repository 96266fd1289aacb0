"""Real processes that hold real files, found by /proc and by leases."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2pcache.io.host import file_users

HOLD = {
    "open": "f = open(path, 'rb')",
    "path": "f = os.open(path, os.O_PATH)",
    "mapped": "f = open(path, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()",
}


@contextmanager
def holding(path: Path, how: str, prefix: tuple[str, ...] = ()) -> Iterator[int]:
    script = f"import os, mmap, sys; path = sys.argv[1]; {HOLD[how]}; print('ok', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "ok\n"
        yield process.pid
        process.communicate("")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 10_000)
    return path


def identity(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino


@pytest.mark.parametrize("how", HOLD)
def test_a_process_is_found_through_another_link(file: Path, tmp_path: Path, how: str) -> None:
    link = tmp_path / "tree"
    link.hardlink_to(file)
    assert file_users.look({identity(file)}).uses == []
    with holding(link, how) as pid:
        (use,) = file_users.look({identity(file)}).uses
        assert f"(pid {pid}" in use.process
        assert use.path == str(link)
    assert file_users.look({identity(file)}).uses == []


def test_a_lease_tells_who_has_it_open_or_mapped(file: Path, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert file_users.held_by_anybody("weights", folder) is False
        for how in ("open", "mapped"):
            with holding(file, how):
                assert file_users.held_by_anybody("weights", folder) is True
    finally:
        os.close(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look as another user")
def test_what_cannot_be_seen_is_said(file: Path) -> None:
    script = (
        "from p2pcache.io.host import file_users; import sys;"
        "print(file_users.look({(int(sys.argv[1]), int(sys.argv[2]))}))"
    )
    dev, inode = identity(file)
    with holding(file, "open"):
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", script,
             str(dev), str(inode)], capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert "uses=[]" in done.stdout
    assert "can't be seen (only root sees them)" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a namespace of processes")
def test_another_namespace_of_processes_is_said(file: Path) -> None:
    script = "from p2pcache.io.host import file_users; print(file_users.look(set()).blind)"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "other containers can't be seen" in done.stdout

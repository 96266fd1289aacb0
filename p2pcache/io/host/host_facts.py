"""Facts of this machine: disk, network, clock, limits. `core.host.diagnosis` judges them."""

import ctypes
import mmap
import os
import pwd
import resource
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from p2pcache.errors import NotAllowed, P2PCacheError, TimedOut
from p2pcache.io.deadline_thread import DeadlineThread
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.http.own_addresses import first_address
from p2pcache.io.security.cluster_key import is_loopback

PIECE_BYTES = 16 << 20  # made durable at a time; the agent flushes 256 MiB, a slow disk gets less
DISK_BYTES = 128 << 20  # more than the cache of a drive and its controller
# Free bytes without which a disk isn't measured: pulls must not miss what that takes.
DISK_ROOM_BYTES = 2 * DISK_BYTES
DISK_S = 2.0  # limit of each direction, for slow disks
_TIMEX_BYTES = 512  # struct timex has 208 on 64 bit; the rest is slack
LOOK_UP_S = 2.0  # a resolver that hangs takes 10 to 30 s, in which a daemon wouldn't start
_ANY_PORT = 9  # of a datagram that is never sent
_TIME_ERROR = 5  # adjtimex(2): the clock isn't synchronised


class Interface(NamedTuple):
    """One network interface. Speed 0: unknown (virtual, wireless)."""

    name: str
    speed_mbit: int
    mtu: int
    up: bool


class Folder(NamedTuple):
    """A directory, or where it would be."""

    exists: bool
    mode: int
    uid: int
    gid: int
    writable: bool
    nearest: Path  # itself or the first ancestor that exists
    closed: str  # the first directory on the way that others can't enter, ""


def interface_of(address: str) -> Interface | None:
    """The interface that has an address; None: no interface of this machine."""
    stats = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name in stats and any(a.address.partition("%")[0] == address for a in addresses):
            found = stats[name]
            return Interface(name, found.speed, found.mtu, found.isup)
    return None


def look_up(host: str, port: int, kind: socket.SocketKind) -> list[tuple[Any, ...]]:
    """The addresses of a host, as `getaddrinfo` gives them, or none after `LOOK_UP_S`.

    Raises:
        OSError: the name isn't known, or the resolver doesn't answer in time.
    """
    asked = DeadlineThread(
        lambda: socket.getaddrinfo(host, port, type=kind), limit_s=LOOK_UP_S, what=host
    )
    try:
        return list(asked.result())
    except TimedOut:
        raise TimeoutError(
            f"no answer to its name in {LOOK_UP_S:.0f} s; does DNS answer?"
        ) from None


def address_of(host: str) -> str:
    """A host's first address; itself where it has none."""
    try:
        return str(look_up(host, _ANY_PORT, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def address_for_peers(tracker: str) -> str:
    """The address of ours that others most probably reach; "" if there is none.

    Where the tracker is another machine, the one that leads to it: of several interfaces (a
    container bridge, a management network) it is the one that the cluster uses.

    Args:
        tracker: URL, or ""; of several, separated by commas, the first counts.
    """
    try:
        name = urlsplit(tracker.partition(",")[0]).hostname or ""
    except ValueError:
        name = ""
    return beyond_loopback(source_towards(name) if name else "")


def beyond_loopback(address: str) -> str:
    """An address of ours; instead of a loopback one, or of none, the first that other machines can dial, "": none."""
    return address if address and not is_loopback(address) else first_address()


def source_towards(host: str) -> str:
    """The address from which this machine would reach a host; "" if it can't. Sends nothing."""
    try:
        found = look_up(host, _ANY_PORT, socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def clock_synchronised() -> bool | None:
    """Whether something (NTP, PTP) keeps the kernel's clock; None: it doesn't tell us."""
    try:
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: look, don't touch
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)


def file_limit(pid: int | None = None) -> int:
    """How many files a process may open at most (the hard limit, which the daemons take).

    Args:
        pid: of the process; None: ourselves.
    """
    if pid is None:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError as error:
        raise NotAllowed(f"can't read the limits of process {pid}: {error.strerror}") from None
    line = next(line for line in lines if line.startswith("Max open files"))
    return int(line.split()[4])


def tcp_buffers() -> dict[str, int]:
    """To how many bytes the kernel grows a connection's buffers; {} where it doesn't show it."""
    found = {}
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            found[name] = int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[2])
        except (OSError, ValueError, IndexError):
            continue
    return found


def folder(path: Path) -> Folder:
    """Look at a directory without changing it.

    Raises:
        NotAllowed: a directory on the way is closed to us.
    """
    try:
        nearest = next(p for p in (path, *path.parents) if p.exists())
        info = nearest.stat()
        closed = [p for p in (nearest, *nearest.parents) if not p.stat().st_mode & stat.S_IXOTH]
    except OSError as error:
        raise NotAllowed(
            f"can't look at {path}: {error.strerror}; run as the agent's user"
        ) from None
    return Folder(
        nearest == path, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid,
        os.access(nearest, os.W_OK | os.X_OK), nearest, str(closed[-1]) if closed else "",
    )  # fmt: skip


def owner(path: Path) -> int | None:
    """Uid of a path's owner; None if the path is missing or closed to us."""
    try:
        return path.stat().st_uid
    except OSError:
        return None


def is_socket(path: Path) -> bool:
    """Whether a unix socket is there (also one that is closed to us, but not in a closed directory)."""
    try:
        return path.is_socket()
    except OSError:
        return False


def can_read(uid: int, info: os.stat_result) -> bool:
    """Whether a user's processes may read a file with these permissions."""
    if uid in (0, info.st_uid):
        return bool(uid == 0 or info.st_mode & stat.S_IRUSR)
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        groups = []
    bit = stat.S_IRGRP if info.st_gid in groups else stat.S_IROTH
    return bool(info.st_mode & bit)


def file_system(path: Path) -> str:
    """The type of the file system that holds a path; "unknown" where that isn't shown."""
    best, kind = "", "unknown"
    for part in psutil.disk_partitions(all=True):
        under = path.is_relative_to(part.mountpoint)
        if under and len(part.mountpoint) >= len(best):  # a later mount covers an earlier one
            best, kind = part.mountpoint, part.fstype
    return kind


def space(path: Path) -> tuple[int, int]:
    """Free and total bytes of a path's disk."""
    with disk_errors(f"looking at {path}"):
        usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize


def disk_speed(directory: Path) -> tuple[float, float]:
    """Bytes per second of one sequential writer (until durable) and reader (past the page cache).

    A few seconds and 128 MiB at most, in a file without a name.

    Raises:
        NotAllowed, NoSpace, P2PCacheError: the directory can't be written.
    """
    piece = mmap.mmap(-1, PIECE_BYTES)  # page-aligned
    piece.write(os.urandom(PIECE_BYTES))  # some drives and file systems compress
    with (
        disk_errors(f"measuring the disk of {directory}"),
        tempfile.TemporaryFile(dir=directory, buffering=0) as file,
    ):
        fd = file.fileno()
        began, written = time.monotonic(), 0
        while written < DISK_BYTES and time.monotonic() - began < DISK_S:
            written += os.pwrite(fd, piece, written)
            os.fdatasync(fd)
        write = written / (time.monotonic() - began)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        began, done = time.monotonic(), 0
        while done < written and time.monotonic() - began < DISK_S:
            count = os.preadv(fd, [piece], done)
            if not count:
                raise P2PCacheError(f"{directory}: what was just written is not there")
            done += count
        return write, done / (time.monotonic() - began)

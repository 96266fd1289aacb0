"""Who a process is: at the other end of a unix socket, and which pod, container or service it belongs to.

Standard library without asyncio: the CLI's fast path uses it.
"""

import re
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pcache.errors import NotAllowed

if TYPE_CHECKING:
    import asyncio

PROC = Path("/proc")
# kubepods-burstable-pod1234_ab.slice with systemd, /kubepods/burstable/pod1234-ab with cgroupfs
_POD = re.compile(r"kubepods.*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)
_UNIT = re.compile(r"/([^/\n]+\.service)(?=/|$)", re.MULTILINE)
SHORT_ID = 12  # digits of a container's id, as crictl and docker show it
_SO_PEERGROUPS = 59  # <asm-generic/socket.h>; Python 3.11 has no name for it
_GROUPS_BYTES = 1024  # the most of Python's getsockopt: 256 supplementary groups
_UCRED = struct.Struct("3i")


class Process(NamedTuple):
    """A process that connected over a unix socket: its ids at that moment, as the kernel names them."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]  # the supplementary ones too


def peer_of(transport: "asyncio.BaseTransport | None") -> Process:
    """The process at the other end of a connection over a unix socket.

    Raises:
        NotAllowed: the kernel doesn't say.
    """
    # Any: asyncio's TransportSocket or uvloop's own class; None once the connection is gone.
    sock: Any = transport.get_extra_info("socket") if transport is not None else None
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(data)
        return Process(pid, uid, gid, frozenset({gid, *_groups(sock)}))
    except (AttributeError, OSError, ValueError, struct.error):  # it has gone already
        raise NotAllowed("the kernel doesn't tell who is calling; try again") from None


def _groups(sock: socket.socket) -> tuple[int, ...]:
    """Supplementary groups; none where the kernel can't say (or there are more than 256)."""
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except (OSError, ValueError):
        return ()
    return struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])


def owner_fields(pid: int, proc: Path = PROC) -> dict[str, str]:
    """`pod` (its UID) and `container`, or `unit`, of a process; {}: it is in none, or nothing is known of it."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace") if pid > 0 else ""
    except OSError:
        return {}
    return fields_of(groups)


def fields_of(groups: str) -> dict[str, str]:
    """The pod and container, or the unit, that the text of a `/proc/PID/cgroup` names."""
    found = {}
    if pod := _POD.search(groups):
        found["pod"] = pod[1].replace("_", "-")
    if containers := _CONTAINER.findall(groups):
        found["container"] = containers[-1][:SHORT_ID]
    elif not pod and (unit := _UNIT.search(groups)):
        found["unit"] = unit[1]
    return found


def name_of(pid: int, proc: Path = PROC) -> str:
    """A process for people: `python3 (pid 77, pod 12ab..)`."""
    try:
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a process"
    owner = "".join(f", {key} {value}" for key, value in owner_fields(pid, proc).items())
    return f"{name} (pid {pid}{owner})"

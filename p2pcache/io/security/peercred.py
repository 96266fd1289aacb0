"""The process at the other end of a unix socket, as the kernel names it (SO_PEERCRED)."""

import asyncio
import socket
import struct
from typing import Any, NamedTuple

from p2pcache.errors import NotAllowed

_SO_PEERGROUPS = 59  # <asm-generic/socket.h>; Python 3.11 has no name for it
_GROUPS_BYTES = 1024  # the most of Python's getsockopt: 256 supplementary groups
_UCRED = struct.Struct("3i")


class Peer(NamedTuple):
    """A process that connected: its ids at that moment."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]  # the supplementary ones too


def peer_of(transport: asyncio.BaseTransport | None) -> Peer:
    """The process at the other end of a connection over a unix socket.

    Raises:
        NotAllowed: the kernel doesn't say.
    """
    # Any: asyncio's TransportSocket or uvloop's own class; None once the connection is gone.
    sock: Any = transport.get_extra_info("socket") if transport is not None else None
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(data)
        return Peer(pid, uid, gid, frozenset({gid, *_groups(sock)}))
    except (AttributeError, OSError, struct.error):  # it has gone already
        raise NotAllowed("the kernel doesn't tell who is calling; try again") from None


def _groups(sock: socket.socket) -> tuple[int, ...]:
    """Supplementary groups; none where the kernel can't say (or there are more than 256)."""
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])

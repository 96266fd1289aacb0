"""Channels between a connection and its socket: plain TCP (`Plain`) or TLS (`secure.Secure`).

Both move bytes without blocking. A call that can't go on raises BlockingIOError; it is repeated when the
socket is ready. One thread at a time receives, and one at a time sends.
"""

import os
import socket
from typing import Protocol

from p2pcache.core.protocol.certificate_identity import Member

Bytes = bytes | memoryview


class Channel(Protocol):
    """A connected, non-blocking byte stream."""

    @property
    def sock(self) -> socket.socket:
        """The socket below."""

    @property
    def member(self) -> Member | None:
        """The member that its certificate proves; None without TLS: the handshake will name it."""

    @property
    def hidden(self) -> int:
        """Upper bound of received bytes that left the kernel and can't be handed on yet."""

    @property
    def short_is_empty(self) -> bool:
        """Whether a receive that brings less than it wanted has most likely emptied the socket."""

    def receive(self, view: memoryview, want: int) -> int:
        """Receive about `want` bytes into `view`, which holds at least `workers.SLICE_BYTES`.

        When it returns or raises BlockingIOError, nothing that could be handed on stays behind:
        waiting for the socket to become readable is safe.

        Raises:
            BlockingIOError: nothing there.
            OSError: the stream is broken, or over.
        """
        ...

    def send(self, data: Bytes, *, more: bool = False) -> int:
        """Take some of `data`, and return how much. `more`: more data follows, so it may be delayed."""
        ...

    def send_file(self, fd: int, at: int, count: int) -> int:
        """Take up to `count` bytes of a file from offset `at`, and return how many; 0: the file ends there."""
        ...

    def flush(self) -> bool:
        """Whether the kernel has all bytes that were taken; False: flush again when writable."""
        ...


class Plain:
    """Plain TCP."""

    member = None
    hidden = 0
    short_is_empty = True

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self.sock = sock
        self._fd = sock.fileno()

    def receive(self, view: memoryview, want: int) -> int:
        """See `Channel`."""
        count = self.sock.recv_into(view, want)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        return count

    def send(self, data: Bytes, *, more: bool = False) -> int:
        """See `Channel`."""
        return self.sock.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, fd: int, at: int, count: int) -> int:
        """See `Channel`."""
        return os.sendfile(self._fd, fd, at, count)

    def flush(self) -> bool:
        """See `Channel`."""
        return True

"""What lies between a connection and its socket: nothing (`Plain`), or TLS (`secure.Secure`).

Both move bytes without blocking; what can't be done now raises BlockingIOError, and the socket's
readiness tells when to ask again. One thread at a time receives, and one at a time sends.
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
        """Who is proved to be at the other end; None: only the handshake will tell."""

    @property
    def hidden(self) -> int:
        """Bytes of payload at most that left the kernel and can't be handed on yet."""

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
        """Take some of `data`, and return how much. `more`: it may wait for what follows."""
        ...

    def send_file(self, fd: int, at: int, count: int) -> int:
        """Take up to `count` bytes of a file from offset `at`; 0: the file ends there."""
        ...

    def flush(self) -> bool:
        """Whether all that was taken is with the kernel now; False: ask again when writable."""
        ...


class Plain:
    """TCP as it is."""

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

"""From an address to a connected socket, without a task and without blocking the loop."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from p2pcache.core.protocol import address as addresses
from p2pcache.errors import RemoteProtocolError
from p2pcache.io import pools

_Found = list[tuple[Any, ...]]


class Dialer:
    """One attempt; ends in exactly one of its two callbacks, unless cancelled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Start; no callback comes before this returns.

        Args:
            loop: the running loop.
            address: "host:port" or "[v6]:port".
            on_connected: given the socket, which it owns from then on.
            on_failed: given one line that says why.
        """
        self._loop = loop
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._socket: socket.socket | None = None
        self._over = False
        try:
            host, port = addresses.split(address)
        except RemoteProtocolError as error:
            loop.call_soon(self._fail, str(error))
            return
        # A numeric address needs no resolver and no thread. A text that no resolver takes is a ValueError.
        with contextlib.suppress(OSError, ValueError):
            flags = socket.AI_NUMERICHOST
            numbers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
            loop.call_soon(self._connect, numbers)
            return
        resolve = pools.NAMES.begin_job(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        resolve.add_done_callback(self._resolved)

    def abandon(self) -> None:
        """Give up; no callback comes any more. After an end it does nothing."""
        self._over = True
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _resolved(self, answer: "asyncio.Future[_Found]") -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if self._over:
            return
        if error is not None:
            self._fail(f"its name can't be resolved: {error}")
            return
        self._connect(answer.result())

    def _connect(self, found: _Found) -> None:
        if self._over:
            return
        family, kind, protocol, _, where = found[0]
        try:
            self._socket = socket.socket(family, kind, protocol)
            self._socket.settimeout(0.0)
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(where)
        except OSError as problem:
            self._fail(f"can't connect: {problem}")
            return
        self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        sock = self._socket
        if sock is None:
            return
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fail(f"can't connect: {os.strerror(error)}")
            return
        self._loop.remove_writer(sock.fileno())
        self._socket = None
        self._over = True
        self._on_connected(sock)

    def _fail(self, text: str) -> None:
        if not self._over:
            self.abandon()
            self._on_failed(text)

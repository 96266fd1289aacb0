"""Calls of an agent's API: its address, our token, and coming back when the agent is busy."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO
from urllib.parse import urlencode, urlsplit

from p2pcache.errors import Busy, Lost, UsageError
from p2pcache.io.http.exchange import Exchange, Json, Place
from p2pcache.io.http.patience import SAY_S, Say, silently

BLOB_ANSWER_S = 300.0  # the agent's disk may be behind by some gigabytes after the last byte
SILENCE_S = 60.0  # streams carry about four events a second, also while nothing moves
RETRY_S = 60.0  # how long a plain call is repeated while the agent is busy
STREAM_RETRY_S = 600.0  # the same of a call that moves gigabytes

HOST_HEADER = "P2pcache-Host"
"""Our own host name: of a pod it is the pod's name, which an agent in another container can't find out itself."""

Events = Generator[Json, None, None]


def as_json(body: Json) -> bytes:
    """A request's body. The errors are those of `_text`."""
    with _text():
        return json.dumps(body, ensure_ascii=False).encode()


@contextmanager
def _text() -> Iterator[None]:
    """Name what is no text, such as bytes of a command line that aren't UTF-8.

    Raises:
        UsageError: there is such.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        begun = error.object[: error.end].rpartition('"')[2]
        raise UsageError(f"{begun!a} isn't UTF-8") from None


class Endpoint:
    """One agent's API. Each call opens its own connection, so threads may share an endpoint."""

    def __init__(self, address: str, token: str, say: Say = silently) -> None:
        """Parse the address; nothing is connected yet.

        Args:
            address: unix:///PATH or http://HOST:PORT.
            token: sent as Bearer, when not empty.
            say: told that we wait for the agent.

        Raises:
            UsageError: another kind of address.
        """
        self.address = address
        self._place = _place(address)
        self._say = say
        self._headers = {HOST_HEADER: socket.gethostname()}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def connection(self) -> http.client.HTTPConnection:
        """A connection that isn't open yet, for requests that are no calls of the API."""
        return self._place.connection()

    def call(
        self, method: str, path: str, *, query: dict[str, str] | None, body: bytes, answer_s: float
    ) -> Json:
        """One JSON object for a request."""
        with _text():
            target = f"{path}?{urlencode(query)}" if query else path
        retry = _BusyRetry(RETRY_S, self._say)
        while True:
            try:
                with Exchange(self._place, answer_s, self._say) as exchange:
                    exchange.start(method, target, self._head(len(body)), body)
                    return exchange.document()
            except Busy as error:
                retry.wait_while_busy(error)

    def stream(self, path: str, body: Json) -> Events:
        """The events that answer a POST, `done` last.

        Raises:
            Lost: the stream ended without `done`.
        """
        retry = _BusyRetry(STREAM_RETRY_S, self._say)
        while True:
            try:
                yield from self._events(path, as_json(body))
                return
            except Busy as error:  # always before the first event
                retry.wait_while_busy(error)

    def _events(self, path: str, data: bytes) -> Events:
        with Exchange(self._place, SILENCE_S, self._say) as exchange:
            exchange.start("POST", path, self._head(len(data)), data)
            for event in exchange.events():
                yield event
                if event["event"] == "done":
                    return
        raise Lost(
            f"the agent at {self.address} stopped in the middle; run the command again to resume"
        )

    def upload(self, path: str, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        """PUT a regular file.

        Args:
            path: of the call.
            file: sent from its first byte by sendfile.
            size: bytes.
            on_bytes: told the bytes of each slice when it is sent; negative when a busy agent
                makes the upload start again.
        """
        retry = _BusyRetry(STREAM_RETRY_S, self._say)
        while True:
            slices: list[int] = []

            def count(size: int, slices: list[int] = slices) -> None:
                slices.append(size)
                on_bytes(size)

            try:
                with Exchange(self._place, BLOB_ANSWER_S, self._say) as exchange:
                    exchange.start("PUT", path, self._head(size))
                    exchange.send_file(file, size, count)
                    exchange.document()
                    return
            except Busy as error:
                on_bytes(-sum(slices))
                retry.wait_while_busy(error)

    def _head(self, body_bytes: int) -> dict[str, str]:
        return self._headers | {"Content-Length": str(body_bytes)}


class _BusyRetry:
    """Sleeps as a busy agent asks, until a time limit is over."""

    def __init__(self, limit_s: float, say: Say) -> None:
        self._said_at = time.monotonic()
        self._deadline = self._said_at + limit_s
        self._say = say

    def wait_while_busy(self, error: Busy) -> None:
        """Sleep for one to two times the pause that the agent asked for; raise `error` beyond the limit."""
        import random  # most calls never wait

        pause = error.retry_after_s * random.SystemRandom().uniform(1.0, 2.0)
        if time.monotonic() + pause > self._deadline:
            raise error
        if time.monotonic() + pause > self._said_at + SAY_S / 2:  # the call itself takes time, too
            self._said_at = time.monotonic()
            self._say(f"waiting: {error}")
        time.sleep(pause)


def _place(address: str) -> Place:
    if isinstance(address, str) and "@" in address.partition("://")[2].partition("/")[0]:
        raise UsageError(
            "not an agent address: it holds a user or a password; give a token instead, with --token-file or "
            "P2PCACHE_TOKEN_FILE"
        )
    try:
        parts = urlsplit(address)
        port = parts.port
    except (ValueError, AttributeError):  # the latter if it is no text
        raise _bad_address(address) from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return Place(address, parts.path, 0)
    if parts.scheme == "http" and parts.hostname and port and parts.path in ("", "/"):
        return Place(address, parts.hostname, port)
    raise _bad_address(address)


def _bad_address(address: str) -> UsageError:
    return UsageError(
        f"not an agent address: {address!r}; expected unix:///PATH or http://HOST:PORT"
    )

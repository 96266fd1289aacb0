"""One request to an agent's API and its answer. Exceptions of sockets and HTTP become our own here.

Standard library only: this is on the fast path of `p2pcache pull`.
"""

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from p2pcache.errors import (
    Busy,
    Lost,
    NoAgent,
    NotAllowed,
    P2PCacheError,
    Unreachable,
    UsageError,
    from_code,
)
from p2pcache.io.http.patience import Patience, Say, silently

CONNECT_S = 5.0  # a live agent accepts at once, also from another host
MAX_ANSWER_BYTES = 256 << 20  # a file list of the largest allowed manifest fits
MAX_EVENT_BYTES = 1 << 20
MAX_RETRY_AFTER_S = 60  # whatever the agent says
SEND_SLICE_BYTES = 8 << 20  # progress of an upload is reported this often

ROLE_HEADER = "P2pcache-Role"  # of each answer of a server that isn't an agent's API
TRACKER = "tracker"

Json = dict[str, Any]


class Place(NamedTuple):
    """Where an agent listens."""

    address: str  # as people write it
    host: str  # of TCP; the path of a unix socket where `port` is 0
    port: int

    def connection(self) -> http.client.HTTPConnection:
        """A connection that isn't open yet."""
        if self.port:
            return http.client.HTTPConnection(self.host, self.port)
        return _UnixConnection(self.host)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Exchange:
    """One request and its answer, on a connection of its own, as a context manager.

    Leaving the block closes the connection. Raises `Unreachable` or `Lost` when the agent doesn't
    answer, `Busy` when it asks us to come back, else the error that the agent sent.
    """

    def __init__(self, place: Place, answer_s: float, say: Say = silently) -> None:
        """Nothing is connected yet.

        Args:
            place: where the agent listens.
            answer_s: the longest time without a byte, once connected.
            say: told that we wait for the agent.
        """
        self._address = place.address
        self._answer_s = answer_s
        self._connection = place.connection()
        self._patience = Patience(place.address, place.connection, answer_s, say)
        self._connection.response_class = self._patience.response  # type: ignore[assignment]
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.close()  # after "Connection: close" the answer holds the socket
        self._connection.close()
        if isinstance(error, OSError | http.client.HTTPException):
            raise _translated(error, self._address) from None

    def start(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> None:
        """Connect and send. `document` reads an answer that comes before all is sent."""
        connection = self._connection
        connection.timeout = CONNECT_S
        with self._patience.connecting():  # a resolver that hangs takes 10 to 30 s
            connection.connect()
        connection.sock.settimeout(self._answer_s)
        connection.putrequest(method, target)
        for name, value in (*headers.items(), ("Connection", "close")):
            connection.putheader(name, value)
        connection.endheaders()
        if body:
            self._send(partial(connection.send, body))

    def send_file(self, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        """Send the body straight from the page cache; `on_bytes` gets the bytes of each slice."""
        left = size
        while left:
            count = min(left, SEND_SLICE_BYTES)
            offset = size - left
            sent = self._send(partial(self._connection.sock.sendfile, file, offset, count))
            if sent is None:
                return
            if sent == 0:
                raise UsageError(
                    f"{file.name} became shorter while it was read; push again when nothing writes to it"
                )
            left -= sent
            on_bytes(sent)

    def document(self) -> Json:
        """The answer as one JSON object."""
        response = self._answer()
        data = response.read(MAX_ANSWER_BYTES + 1)
        value = _parse(data) if len(data) <= MAX_ANSWER_BYTES else None
        if response.status >= 400:
            raise self._refusal(response, value)
        if value is None:
            raise _no_api(self._address)
        return value

    def events(self) -> Iterator[Json]:
        """The answer as NDJSON; an `error` event is raised."""
        response = self._answer()
        if response.status >= 400:
            raise self._refusal(response, _parse(response.read(MAX_EVENT_BYTES)))
        while line := response.readline(MAX_EVENT_BYTES):
            event = _parse(line)
            if event is None or not isinstance(event.get("event"), str):
                raise P2PCacheError(f"the agent at {self._address} sent a line that isn't an event")
            if event["event"] == "error":
                raise _error(event, "the agent gave no reason")
            yield event

    def _answer(self) -> http.client.HTTPResponse:
        """The head of the answer.

        Raises:
            Unreachable: a tracker answers. It has calls of the same names, and none of most.
        """
        self._response = self._connection.getresponse()
        if self._response.headers.get(ROLE_HEADER) == TRACKER:
            raise no_agent_but_tracker(self._address)
        return self._response

    def _send(self, send: Callable[[], Any]) -> int | None:
        """None: the agent closed its end, probably after an early answer, which `document` reads."""
        try:
            return int(send() or 0)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def _refusal(self, response: http.client.HTTPResponse, value: Json | None) -> P2PCacheError:
        status, later = response.status, response.headers.get("Retry-After", "")
        if status in (429, 503) and later.isascii() and later.isdigit():
            text = (value or {}).get("message") or f"the agent at {self._address} is busy"
            return Busy(str(text), retry_after_s=min(int(later), MAX_RETRY_AFTER_S))
        if value is not None and not isinstance(value.get("code"), int):
            value = None  # a gateway may explain itself in JSON, too
        if value is None and status in (401, 403):
            return NotAllowed(f"the agent at {self._address} refuses this call; check --token-file")
        if value is None and status < 500:
            return _no_api(self._address)
        if value is None:
            return Unreachable(
                f"what answers at {self._address} is no agent, or a proxy that doesn't reach one (HTTP {status}); "
                "check --agent"
            )
        return _error(value, f"the agent at {self._address} answered HTTP {status}")


def no_agent_but_tracker(address: str) -> Unreachable:
    """The error for a call that reached a tracker instead of an agent."""
    return Unreachable(f"what answers at {address} is a tracker, no agent; check --agent")


def _no_api(address: str) -> Unreachable:
    return Unreachable(
        f"what answers at {address} is no agent's API; check --agent (an agent's --listen is for peers)"
    )


def _parse(data: bytes) -> Json | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error(value: Json, otherwise: str) -> P2PCacheError:
    code, message = value.get("code"), value.get("message")
    return from_code(code if isinstance(code, int) else 1, str(message) if message else otherwise)


def _translated(error: BaseException, address: str) -> P2PCacheError:
    """The error of our own tree for an exception of the socket or the HTTP library."""
    if isinstance(error, FileNotFoundError):
        return NoAgent(
            f"no agent at {address}: the socket isn't there; start one with 'p2pcache agent'"
        )
    if isinstance(error, BlockingIOError):  # the accept queue of a unix socket is full
        return Busy(f"the agent at {address} has too many callers", retry_after_s=0.5)
    if isinstance(error, PermissionError):
        return NotAllowed(
            f"not allowed to use the agent at {address}: {error.strerror}; "
            "run this as root or as a member of group p2pcache"
        )
    if isinstance(error, ConnectionRefusedError):
        return NoAgent(
            f"no agent answers at {address}; start one with 'p2pcache agent' or check the address "
            "(--agent, in Python agent=)"
        )
    if isinstance(error, TimeoutError):
        return Unreachable(f"the agent at {address} doesn't answer; look at its log")
    if isinstance(error, http.client.HTTPException) and not isinstance(
        error, ConnectionError | http.client.IncompleteRead
    ):
        return _no_api(address)
    text = reason_of(error)
    if isinstance(error, socket.gaierror):
        return NoAgent(
            f"no agent at {address}: its name can't be resolved ({text}); check the address "
            "(--agent, in Python agent=), and that DNS answers"
        )
    return Lost(f"lost the agent at {address}: {text}; run the command again to resume")


def reason_of(error: BaseException) -> str:
    """The cause of a failed call in the system's words, without the error's number and class."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"  # asyncio's own text is no sentence
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

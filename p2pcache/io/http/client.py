"""A blocking client of the agent's local API (docs/api.md), over a unix socket or TCP.

Each call opens its own connection, so one client serves many threads. Only the standard library
is imported: this is the fast path of `p2pcache pull`.
"""

import http.client
import json
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote, urlencode, urlsplit

from p2pcache.errors import Busy, Lost, NotAllowed, P2PCacheError, UsageError, from_code
from p2pcache.io.http.busy_retry import Patience
from p2pcache.io.http.client_errors import translated

CONNECT_S = 5.0  # a live agent accepts at once, also from another host
ANSWER_S = 60.0  # a resolve may wait for tracker and origin, with their retries
BLOB_ANSWER_S = 300.0  # the agent's disk may be behind by some gigabytes when the last byte is sent
SILENCE_S = 60.0  # streams carry about four events a second, also while nothing moves
PATIENCE_S = 60.0  # a busy agent is asked again for so long ...
STREAM_PATIENCE_S = 600.0  # ... and by those who came for gigabytes
MAX_ANSWER_BYTES = 256 << 20  # a file list of the largest allowed manifest fits
MAX_EVENT_BYTES = 1 << 20
MAX_TOKEN_BYTES = 16 << 10
MAX_RETRY_AFTER_S = 60  # whatever the agent says
SEND_SLICE_BYTES = 8 << 20  # progress of an upload is told this often

Json = dict[str, Any]
Events = Generator[Json, None, None]


class AgentClient:
    """Calls to one agent. Raises `Unreachable` when it doesn't answer, else the agent's own error."""

    def __init__(self, address: str, *, token: str = "", answer_s: float = ANSWER_S) -> None:
        """Parse the address; nothing is connected yet.

        Args:
            address: unix:///PATH or http://HOST:PORT.
            token: sent as Bearer, when not empty.
            answer_s: how long a plain call may take.

        Raises:
            UsageError: another kind of address.
        """
        self.address = address
        self._answer_s = answer_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            parts = urlsplit(address)
            port = parts.port
        except (ValueError, AttributeError):  # the latter of what is no text
            raise _bad_address(address) from None
        if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
            self._target: tuple[str, int] = (parts.path, 0)
        elif parts.scheme == "http" and parts.hostname and port and parts.path in ("", "/"):
            self._target = (parts.hostname, port)
        else:
            raise _bad_address(address)

    def pull(
        self,
        ref: str,
        *,
        force_generation: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        background: bool = False,
    ) -> Events:
        """Events of a pull, `done` last; closing the iterator stops waiting for it.

        Args:
            ref: the model.
            force_generation: take a tag that went back, too.
            include: patterns of files; none of both: the whole model.
            exclude: patterns of files to leave out.
            background: pulls that somebody waits for go first.
        """
        body: Json = {"ref": ref, "force_generation": force_generation}
        if background:  # else unsaid: an older agent refuses the word
            body["background"] = True
        if include or exclude:
            body |= {"include": list(include), "exclude": list(exclude)}
        return self._stream("POST", "/v1/pull", body)

    def warm(self, ref: str, replicas: int = 0) -> Json:
        """Have a model fetched behind all pulls: here, or on so many nodes of the cluster."""
        body = json.dumps({"ref": ref, "replicas": replicas}).encode()
        return self._call("POST", "/v1/warm", body=body, wait_s=ANSWER_S)

    def load(self, ref: str, *, needed: bool) -> Events:
        """Events while a model arrives, `done` last; `needed`: only what `demand` names is fetched."""
        return self._stream("POST", "/v1/load", {"ref": ref, "needed": needed})

    def demand(self, load: str, runs: list[tuple[int, int]], *, urgent: bool) -> None:
        """Runs [start, end) that an attached load needs; `urgent`: before everything else."""
        body = json.dumps({"load": load, "runs": runs, "urgent": urgent}).encode()
        self._call("POST", "/v1/demand", body=body)

    def verify(self, ref: str) -> Events:
        """Events of a verify, `done` last."""
        return self._stream("POST", "/v1/verify", {"ref": ref})

    def push(self, ref: str, digest: str, **how: bool) -> Events:
        """Events of the upload (`force`, `repair`), `done` last; the blobs are with the agent already."""
        return self._stream("POST", "/v1/push", {"ref": ref, "digest": digest, **how})

    def linger(self, digest: str, seconds: float) -> bool:
        """Wait until another node has all that this one has of a model, `seconds` at most; whether so."""
        body = json.dumps({"digest": digest, "seconds": seconds}).encode()
        return bool(self._call("POST", "/v1/linger", body=body, wait_s=seconds).get("replicated"))

    def offer(self, manifest: bytes) -> Json:
        """Start a push: which blobs the agent needs."""
        return self._call("POST", "/v1/manifests", body=manifest)

    def models(self) -> list[Json]:
        """The models of the agent's cache."""
        return _records(self._call("GET", "/v1/models"), "models")

    def model(self, ref: str) -> Json:
        """One model, in the cache or not."""
        return self._call("GET", "/v1/model", query={"ref": ref})

    def remove(self, ref: str) -> Json:
        """Remove a tag; with its last tag, the model."""
        return self._call("DELETE", "/v1/model", query={"ref": ref})

    def prune(self, *, dry_run: bool, everything: bool) -> Json:
        """Free what nothing names; with `everything`, each model that is not in use."""
        body = json.dumps({"dry_run": dry_run, "all": everything}).encode()
        return self._call("POST", "/v1/prune", body=body)

    def pulls(self) -> list[Json]:
        """The pulls that run now."""
        return _records(self._call("GET", "/v1/pulls"), "pulls")

    def nodes(self) -> list[Json]:
        """The cluster's nodes, as the tracker knows them."""
        return _records(self._call("GET", "/v1/nodes"), "nodes")

    def locate(self, ref: str) -> Json:
        """The nodes that have a model: `ref`, `digest`, `label`, `nodes`."""
        return self._call("GET", "/v1/locate", query={"ref": ref})

    def history(self, limit: int) -> list[Json]:
        """What ended on the agent's node, the newest first."""
        return _records(self._call("GET", "/v1/history", query={"limit": str(limit)}), "history")

    def explain(self, ref: str) -> Json:
        """What a pull waits for, or where its time went."""
        return self._call("GET", "/v1/explain", query={"ref": ref})

    def status(self) -> Json:
        """Agent, tracker, origin and cache in one object."""
        return self._call("GET", "/v1/status")

    def put_blob(
        self, manifest: str, blob: str, file: BinaryIO, size: int, on_bytes: Callable[[int], None]
    ) -> None:
        """Send one blob of a push.

        Args:
            manifest: digest of the manifest that was offered.
            blob: id of the blob.
            file: a regular file, sent from its first byte by sendfile.
            size: bytes.
            on_bytes: told the bytes of each slice when it is sent.

        Raises:
            P2PCacheError: the agent's own error (not proved, no space, ...).
        """
        path = f"/v1/blobs/{quote(manifest)}/{quote(blob)}"
        patience = Patience(STREAM_PATIENCE_S)
        while True:
            sent: list[int] = []

            def count(size: int, sent: list[int] = sent) -> None:
                sent.append(size)
                on_bytes(size)

            try:
                with _Exchange(self, BLOB_ANSWER_S) as exchange:
                    exchange.start("PUT", path, {"Content-Length": str(size)})
                    exchange.send_file(file, size, count)
                    exchange.document()
                    return
            except Busy as error:
                on_bytes(-sum(sent))  # from the beginning, later
                patience.wait(error)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes = b"",
        wait_s: float = 0.0,
    ) -> Json:
        target = f"{path}?{urlencode(query)}" if query else path
        patience = Patience(PATIENCE_S)
        while True:
            try:
                with _Exchange(self, self._answer_s + wait_s) as exchange:
                    exchange.start(method, target, {"Content-Length": str(len(body))}, body)
                    return exchange.document()
            except Busy as error:
                patience.wait(error)

    def _stream(self, method: str, path: str, body: Json) -> Events:
        patience = Patience(STREAM_PATIENCE_S)
        while True:
            try:
                yield from self._events(method, path, json.dumps(body).encode())
                return
            except Busy as error:  # always before the first event
                patience.wait(error)

    def _events(self, method: str, path: str, data: bytes) -> Events:
        with _Exchange(self, SILENCE_S) as exchange:
            exchange.start(method, path, {"Content-Length": str(len(data))}, data)
            for event in exchange.events():
                yield event
                if event["event"] == "done":
                    return
        raise Lost(
            f"the agent at {self.address} stopped in the middle; run the command again to resume"
        )

    def connection(self) -> http.client.HTTPConnection:
        """A connection that isn't open yet."""
        host, port = self._target
        return http.client.HTTPConnection(host, port) if port else _UnixConnection(host)

    @property
    def headers(self) -> dict[str, str]:
        """Sent with every request."""
        return self._headers


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Exchange:
    """One request and its answer; foreign exceptions become ours here."""

    def __init__(self, client: AgentClient, answer_s: float) -> None:
        self._client = client
        self._answer_s = answer_s
        self._connection = client.connection()
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
            self._response.close()  # after "Connection: close" it, not the connection, holds the socket
        self._connection.close()
        if isinstance(error, OSError | http.client.HTTPException):
            raise translated(error, self._client.address) from None

    def start(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Connect and send; an answer that comes before all is sent is read by `document`."""
        connection = self._connection
        connection.timeout = CONNECT_S
        connection.connect()
        connection.sock.settimeout(self._answer_s)
        connection.putrequest(method, target)
        for name, value in (self._client.headers | headers | {"Connection": "close"}).items():
            connection.putheader(name, value)
        connection.endheaders()
        if body:
            self._send(partial(connection.send, body))

    def send_file(self, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        """The body, straight from the page cache."""
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
        response = self._response = self._connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES + 1)
        value = _parse(data) if len(data) <= MAX_ANSWER_BYTES else None
        if response.status >= 400:
            raise self._refusal(response, value)
        if value is None:
            raise P2PCacheError(
                f"the agent at {self._client.address} sent an answer that isn't JSON; is it an agent?"
            )
        return value

    def events(self) -> Iterator[Json]:
        """The answer as NDJSON; an `error` event is raised."""
        response = self._response = self._connection.getresponse()
        if response.status >= 400:
            raise self._refusal(response, _parse(response.read(MAX_EVENT_BYTES)))
        while line := response.readline(MAX_EVENT_BYTES):
            event = _parse(line)
            if event is None or not isinstance(event.get("event"), str):
                raise P2PCacheError(
                    f"the agent at {self._client.address} sent a line that isn't an event"
                )
            if event["event"] == "error":
                raise _error(event, "the agent gave no reason")
            yield event

    def _send(self, send: Callable[[], Any]) -> int | None:
        """None: the agent closed its end, probably after an early answer, which `document` reads."""
        try:
            return int(send() or 0)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def _refusal(self, response: http.client.HTTPResponse, value: Json | None) -> P2PCacheError:
        status, later = response.status, response.headers.get("Retry-After", "")
        if status in (429, 503) and later.isascii() and later.isdigit():
            text = (value or {}).get("message") or f"the agent at {self._client.address} is busy"
            return Busy(str(text), retry_after_s=min(int(later), MAX_RETRY_AFTER_S))
        if value is None and status in (401, 403):
            return NotAllowed(
                f"the agent at {self._client.address} refuses this call; check --token-file"
            )
        return _error(value or {}, f"the agent at {self._client.address} answered HTTP {status}")


def read_token(path: str) -> str:
    """The token of a file, "" for no path.

    Raises:
        NotAllowed: it can't be read.
        UsageError: it isn't a token (one printable word).
    """
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotAllowed(f"can't read token file {path}: {error.strerror}") from None
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise UsageError(f"token file {path} doesn't hold a token (one word of printable ASCII)")
    return token


def _bad_address(address: str) -> UsageError:
    return UsageError(
        f"not an agent address: {address!r}; expected unix:///PATH or http://HOST:PORT"
    )


def _parse(data: bytes) -> Json | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _records(answer: Json, key: str) -> list[Json]:
    records = answer.get(key)
    if not isinstance(records, list):
        raise P2PCacheError(f"the agent's answer has no {key!r}; is it of another release?")
    return [r for r in records if isinstance(r, dict)]


def _error(value: Json, otherwise: str) -> P2PCacheError:
    code, message = value.get("code"), value.get("message")
    return from_code(code if isinstance(code, int) else 1, str(message) if message else otherwise)

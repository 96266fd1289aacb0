"""A proxy in front of an S3 server that can misbehave as storages do, switched while it runs.

    with FaultProxy(directory, upstream=("127.0.0.1", s3.port)) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        proxy.fault("busy", seconds=5)           # 503 SlowDown to everything
        proxy.fault("corrupt", key=blob_hex)     # until proxy.clear()
        print(proxy.counters())

By hand: `python -m loadtest.kit.faultproxy --listen H:P --upstream H:P --control /path.sock`, then one
JSON object per line on the control socket, answered by one: {"do": "busy", "seconds": 5}.

| fault | what the client sees |
|---|---|
| busy | 503 SlowDown |
| reset | half of a blob's body, then a connection reset |
| truncate | half of a blob's body, then an orderly end |
| stall | a request is taken and never answered |
| freeze | half of a blob's body, then silence |
| corrupt | every 4,096th byte of the object `key` is wrong |
| latency | every answer comes `delay` seconds later |

`seconds` and `times` end a fault; without either it stays until `clear`.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from loadtest.kit.relay import Closed, Head, Wire, pass_body
from loadtest.kit.seaweed import free_ports

CORRUPT_STEP = 4096  # no chunk of a large file is so small as to stay whole
KINDS = ("busy", "reset", "truncate", "stall", "freeze", "corrupt", "latency")
_BODY_FAULTS = ("reset", "truncate", "freeze")
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)


@dataclass(slots=True)
class Fault:
    """One switched-on fault."""

    kind: str
    until: float = float("inf")
    times: float = float("inf")
    key: str = ""
    delay: float = 0.0


@dataclass(slots=True)
class State:
    """What the connections share."""

    faults: list[Fault] = field(default_factory=list)
    requests: int = 0
    blob_bytes: int = 0  # body bytes of GETs of blobs, as sent to clients
    by_key: Counter[str] = field(default_factory=Counter)  # the same, per blob
    hits: Counter[str] = field(default_factory=Counter)  # how often each fault struck
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kinds: Sequence[str], path: str) -> Fault | None:
        """The active fault of these kinds that strikes this request, if any; counts it."""
        with self.lock:
            now = time.monotonic()
            self.faults = [f for f in self.faults if f.until > now and f.times > 0]
            for fault in self.faults:
                if fault.kind in kinds and fault.key in path:
                    fault.times -= 1
                    self.hits[fault.kind] += 1
                    return fault
        return None

    def control(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order of the control socket."""
        do = order.get("do")
        with self.lock:
            if do == "clear":
                self.faults.clear()
            elif do in KINDS:
                seconds = order.get("seconds")
                until = float("inf") if seconds is None else time.monotonic() + seconds
                times = order.get("times")
                self.faults.append(
                    Fault(do, until, float("inf") if times is None else times,
                          order.get("key", ""), order.get("delay", 0.0))
                )  # fmt: skip
            elif do != "counters":
                return {"error": f"unknown order {do!r}"}
            return {
                "requests": self.requests,
                "blob_bytes": self.blob_bytes,
                "by_key": dict(self.by_key),
                "hits": dict(self.hits),
            }


class Connection:
    """One client connection with its own upstream connection, on a thread."""

    def __init__(self, client: socket.socket, upstream: tuple[str, int], state: State) -> None:
        self._client = Wire(client)
        self._upstream = upstream
        self._state = state
        self._server: Wire | None = None

    def run(self) -> None:
        """Serve requests until one side ends."""
        try:
            while self._exchange():
                pass
        except (OSError, ValueError):
            pass  # either side went away, or sent what isn't HTTP: the client must cope
        finally:
            for wire in (self._client, self._server):
                if wire is not None:
                    wire.sock.close()

    def _exchange(self) -> bool:
        try:
            request = self._client.head()
        except Closed:
            return False
        state, path = self._state, request.first[1]
        with state.lock:
            state.requests += 1
        slow = state.take(["latency"], path)
        if slow is not None:
            time.sleep(slow.delay)
        if state.take(["stall"], path) is not None:
            return self._hold()
        if state.take(["busy"], path) is not None:
            self._answer_busy()
            return False
        answer = self._forward(request)
        return self._pass_answer(request, answer) and "close" not in (
            answer.headers.get("connection", "").lower(),
            request.headers.get("connection", "").lower(),
        )

    def _forward(self, request: Head) -> Head:
        """Send the request on; returns the final answer's head, not yet passed on."""
        if self._server is None:
            self._server = Wire(socket.create_connection(self._upstream))
        server = self._server
        server.sock.sendall(request.raw)
        if "100-continue" in request.headers.get("expect", "").lower():
            answer = server.head()
            if answer.first[1] != "100":
                return answer
            self._client.sock.sendall(answer.raw)
        # a server that answers early and stops reading: its answer is what counts
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pass_body(self._client, request, server.sock.sendall)
        answer = server.head()
        while answer.first[1].startswith("1"):
            answer = server.head()
        return answer

    def _pass_answer(self, request: Head, answer: Head) -> bool:
        assert self._server is not None
        method, path = request.first[0], request.first[1].partition("?")[0]
        status = answer.first[1]
        self._client.sock.sendall(answer.raw)
        if method == "HEAD" or status in ("204", "304"):
            return True
        blob = method == "GET" and "/blobs/" in path and status in ("200", "206")
        fault = self._state.take(_BODY_FAULTS, path) if blob else None
        bad = self._state.take(["corrupt"], path) if blob else None
        emitter = _Body(self, path if blob else "", _start(request), fault, corrupt=bad is not None)
        emitter.stop_at = answer.length // 2 if fault is not None else None
        pass_body(self._server, answer, emitter.emit)
        return True

    def send(self, data: bytes, key: str) -> None:
        """To the client, counted when it belongs to a blob: before, as who has it may ask at once how much it was."""
        if key:
            with self._state.lock:
                self._state.blob_bytes += len(data)
                self._state.by_key[key.rpartition("/")[2]] += len(data)
        self._client.sock.sendall(data)

    def strike(self, kind: str) -> NoReturn:
        """End a body as the fault wants it."""
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)  # close() then sends RST and drops what is queued
            self._client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif kind == "freeze":
            self._hold()
        raise ConnectionError(kind)

    def _hold(self) -> bool:
        """Say nothing until the client gives up."""
        with contextlib.suppress(OSError):
            while self._client.sock.recv(65536):
                pass
        return False

    def _answer_busy(self) -> None:
        head = (
            "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(_SLOW_DOWN)}\r\nConnection: close\r\n\r\n"
        )
        self._client.sock.sendall(head.encode() + _SLOW_DOWN)
        self._client.sock.shutdown(socket.SHUT_WR)
        self._hold()  # reading what it still sends: a close on unread bytes would reset the answer


class _Body:
    """The bytes of one answer on their way to the client."""

    def __init__(
        self, connection: Connection, key: str, start: int, fault: Fault | None, *, corrupt: bool
    ) -> None:
        self._connection = connection
        self._key = key
        self._offset = start  # within the object
        self._sent = 0
        self._fault = fault
        self._corrupt = corrupt
        self.stop_at: int | None = None

    def emit(self, data: bytes) -> None:
        if self._corrupt:
            data = self._damaged(data)
        if self._fault is not None and self.stop_at is not None:
            data = data[: self.stop_at - self._sent]
        self._connection.send(data, self._key)
        self._sent += len(data)
        self._offset += len(data)
        if self._fault is not None and self._sent == self.stop_at:
            self._connection.strike(self._fault.kind)

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for i in range(-self._offset % CORRUPT_STEP, len(changed), CORRUPT_STEP):
            changed[i] ^= 0xFF
        return bytes(changed)


class FaultProxy:
    """Runs the proxy as a process and talks to it. A context manager."""

    def __init__(
        self,
        directory: Path,
        upstream: tuple[str, int],
        *,
        listen: tuple[str, int] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix`: put before the command (a namespace); then give `listen` too."""
        self.address = listen or ("127.0.0.1", free_ports(1)[0])
        self._upstream = upstream
        self._prefix = tuple(prefix)
        directory.mkdir(parents=True, exist_ok=True)
        self._socket = directory / "faults.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """What clients take for the S3 endpoint."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def start(self) -> None:
        """Start and wait until it listens."""
        command = [
            *self._prefix, sys.executable, "-m", "loadtest.kit.faultproxy",
            "--listen", f"{self.address[0]}:{self.address[1]}",
            "--upstream", f"{self._upstream[0]}:{self._upstream[1]}", "--control", str(self._socket),
        ]  # fmt: skip
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=root, start_new_session=True)
        deadline = time.monotonic() + 15
        while not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("the fault proxy didn't start")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._socket.unlink(missing_ok=True)

    def fault(
        self,
        kind: str,
        *,
        seconds: float | None = None,
        times: int | None = None,
        key: str = "",
        delay: float = 0.0,
    ) -> None:
        """Switch a fault on; `key`: only for requests whose path contains it."""
        self._order({"do": kind, "seconds": seconds, "times": times, "key": key, "delay": delay})

    def clear(self) -> None:
        """Switch all faults off."""
        self._order({"do": "clear"})

    def counters(self) -> dict[str, Any]:
        """`requests`, `blob_bytes`, `by_key` (bytes per blob), `hits` (per fault)."""
        return self._order({"do": "counters"})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(self._socket))
            sock.sendall(json.dumps(order).encode() + b"\n")
            with sock.makefile() as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


def _start(request: Head) -> int:
    """Offset of the first body byte within the object."""
    unit, _, span = request.headers.get("range", "bytes=0-").partition("=")
    return int(span.partition("-")[0]) if unit == "bytes" else 0


def _serve_control(listener: socket.socket, state: State) -> None:
    while True:
        with contextlib.closing(listener.accept()[0]) as client, client.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(state.control(json.loads(line))) + "\n")
                lines.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.kit.faultproxy")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--control", required=True, metavar="PATH")
    options = parser.parse_args()
    state = State()
    listener = socket.create_server(_address(options.listen), backlog=128)
    control = socket.socket(socket.AF_UNIX)
    control.bind(options.control)
    control.listen()
    threading.Thread(target=_serve_control, args=(control, state), daemon=True).start()
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, _address(options.upstream), state)
        threading.Thread(target=connection.run, daemon=True).start()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()

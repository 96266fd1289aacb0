"""How a body is read from its connection: in few wake-ups where bytes come quickly, with none lost where they stop."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from p2pcache.errors import OriginUnavailable, P2PCacheError
from p2pcache.io.origins.s3 import body
from p2pcache.io.origins.s3.body import WAKE_BYTES, S3Body

SIZE = 4 * WAKE_BYTES + 12_345
PIECE = 16_384
DATA = bytes(range(256)) * (SIZE // 256 + 1)


class Way(NamedTuple):
    """Both ends of a connection, and the body that is read from one."""

    server: socket.socket
    client: socket.socket
    body: S3Body
    released: list[str]


def translate(error: Exception) -> P2PCacheError:
    return OriginUnavailable(repr(error))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, bytes count as coming quickly."""
    monkeypatch.setattr(body, "WAKE_S", 60.0)


@pytest.fixture
def opened() -> Iterator[Callable[[], Way]]:
    """Make one, its answer's head read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    client.settimeout(0.2)

    def make() -> Way:
        server.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % SIZE)
        response = http.client.HTTPResponse(client)
        response.begin()
        released: list[str] = []
        raw = SimpleNamespace(
            _fp=response, connection=SimpleNamespace(sock=client),
            close=lambda: released.append("closed"), release_conn=lambda: released.append("kept"),
        )  # fmt: skip
        return Way(server, client, S3Body("x", raw, SIZE, translate, counted=True), released)

    with client, server:
        yield make


def dribble(sock: socket.socket, size: int) -> None:
    """Send as packets come."""
    for start in range(0, size, PIECE):
        sock.sendall(DATA[start : min(size, start + PIECE)])
        time.sleep(0.0002)


def lowat(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_one_body_after_another_on_one_connection(opened: Callable[[], Way]) -> None:
    for _ in range(2):
        way = opened()
        sender = threading.Thread(target=way.server.sendall, args=(DATA[:SIZE],))
        sender.start()
        buffer, found = memoryview(bytearray(WAKE_BYTES + 1)), bytearray()
        with way.body as reader:
            while count := reader.readinto(buffer):
                found += buffer[:count]
        sender.join()
        assert bytes(found) == DATA[:SIZE]
        assert way.released == ["kept"]
        assert lowat(way.client) == 1  # the next head is shorter than any wake-up


def test_quick_bytes_come_in_few_calls(opened: Callable[[], Way]) -> None:
    way = opened()
    buffer, calls, came = memoryview(bytearray(SIZE)), 0, 0
    sender = threading.Thread(target=dribble, args=(way.server, SIZE))
    sender.start()
    with way.body as reader:
        while count := reader.readinto(buffer[: SIZE - came]):
            calls, came = calls + 1, came + count
    sender.join()
    assert came == SIZE
    assert calls <= SIZE // PIECE // 2


def test_what_came_before_silence_is_kept(opened: Callable[[], Way]) -> None:
    """The reader waits for a lot of bytes when the sender stops. Those that came aren't lost with the time-out."""
    way = opened()
    most, buffer = 3 * WAKE_BYTES + 1000, memoryview(bytearray(SIZE))
    sender = threading.Thread(target=dribble, args=(way.server, most))
    sender.start()
    came, lowats = 0, set()
    with way.body as reader:
        while came < most:
            came += reader.readinto(buffer[: SIZE - came])
            lowats.add(lowat(way.client))
        with pytest.raises(OriginUnavailable):
            reader.readinto(buffer[: SIZE - came])
    sender.join()
    assert came == most
    assert max(lowats) > 1  # so it had waited for many
    assert way.released == ["closed"]


def test_an_early_end_is_noticed_at_once(opened: Callable[[], Way]) -> None:
    way = opened()
    most, buffer = 2 * WAKE_BYTES + 5, memoryview(bytearray(SIZE))
    way.client.settimeout(20)
    way.server.sendall(DATA[:most])
    way.server.shutdown(socket.SHUT_WR)
    came = 0
    with way.body as reader:
        while came < most:
            came += reader.readinto(buffer[: SIZE - came])
        with pytest.raises(OriginUnavailable, match="ended"):
            reader.readinto(buffer[: SIZE - came])
    assert came == most


def test_slow_bytes_come_in_few_calls_that_end_soon(
    opened: Callable[[], Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow way a call waits for what comes in WAKE_S, not for WAKE_BYTES: a cancel is heeded between calls."""
    monkeypatch.setattr(body, "WAKE_S", 0.05)
    way, most = opened(), 24 * 4096

    def trickle() -> None:
        for start in range(0, most, 4096):
            way.server.sendall(DATA[start : start + 4096])
            time.sleep(0.01)
        way.server.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=trickle)
    sender.start()
    buffer, came, calls, lowats = memoryview(bytearray(SIZE)), 0, 0, set()
    with way.body:
        while came < most:
            came, calls = came + way.body.readinto(buffer[: SIZE - came]), calls + 1
            lowats.add(lowat(way.client))
    sender.join()
    assert calls <= 12
    assert max(lowats) <= most // 2


def test_bytes_are_taken_as_they_come_if_none_is_waited_for(
    opened: Callable[[], Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "WAKE_S", 0.0)
    way = opened()
    sender = threading.Thread(target=dribble, args=(way.server, SIZE))
    sender.start()
    buffer, came = memoryview(bytearray(SIZE)), 0
    with way.body:
        while count := way.body.readinto(buffer[: SIZE - came]):
            came += count
            assert lowat(way.client) == 1
    sender.join()
    assert came == SIZE

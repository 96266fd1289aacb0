"""What waits in the send buffer hasn't been uploaded: real sockets with a reader that takes its time."""

import asyncio
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop

from p2pcache.core.settings import UploadSettings
from p2pcache.errors import UsageError
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.wire import Kind
from p2pcache.io.peers.transport import tcp_info
from tests.io.peers import raw
from tests.io.peers.kit import make_model, node

BUFFER = 1 << 20
STALL_S = 30.0
NOTSENT_LOWAT = 25

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(autouse=True)
def _loopback_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first packets crossed it at gigabytes per second, which says nothing about the reader."""
    monkeypatch.setattr(tcp_info, "_LITTLE_S", 0.0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A sender with a large buffer, and a reader with a small one."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(listener.getsockname())
        sender, _ = listener.accept()
        with sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            sender.setblocking(False)
            yield sender, reader


def fill(sender: socket.socket) -> int:
    written = sender.send(bytes(BUFFER // 2))
    assert tcp_info.unsent(sender) > tcp_info.LITTLE_BYTES
    return written


def test_it_returns_when_next_to_nothing_waits(pair: Pair) -> None:
    sender, reader = pair
    written = fill(sender)
    begun = threading.Event()

    def read() -> None:
        assert begun.wait(STALL_S)
        left = written
        while left:
            left -= len(reader.recv(4096))

    thread = threading.Thread(target=read)
    thread.start()
    begun.set()
    tcp_info.wait_sent(sender, STALL_S)
    assert tcp_info.unsent(sender) <= tcp_info.LITTLE_BYTES
    assert sender.getsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT) == 0, "only for the wait"
    thread.join()
    tcp_info.wait_sent(sender, 0.0)  # nothing waits: it asks for no time
    assert tcp_info.unsent(sender) == 0


def test_a_reader_that_takes_nothing_is_given_up(pair: Pair) -> None:
    sender, _reader = pair
    fill(sender)
    with pytest.raises(TimeoutError):
        tcp_info.wait_sent(sender, 0.05)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_the_end_of_the_connection_ends_the_wait(pair: Pair, whose: str) -> None:
    sender, reader = pair
    fill(sender)
    end = reader.close if whose == "theirs" else lambda: sender.shutdown(socket.SHUT_RDWR)
    ending = threading.Timer(0.05, end)
    ending.start()
    with pytest.raises(ConnectionError):
        tcp_info.wait_sent(sender, STALL_S)
    ending.join()


def test_a_closed_socket_has_no_figures() -> None:
    sock = socket.socket()
    sock.close()
    assert tcp_info.min_rtt_s(sock) == 0.0
    assert tcp_info.rate(sock) == 0


async def test_bytes_in_the_send_buffer_hold_their_slot() -> None:
    """The next one who asks hears BUSY, and finds a node whose uplink is free."""
    model = make_model([400_000] * 2)
    uploads = UploadSettings(slots=1)
    async with node(1, uploads=uploads) as server:
        server.swarm(model, full=True)
        listening = server.net._parts.listener._socket  # what it accepts has such a buffer too
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        slow = await raw.member(server, 7, window=4096)
        quick = await raw.joined(server, model, 8)
        async with slow, quick:
            await slow.send(raw.join(model))
            await slow.frame(Kind.JOINED)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await slow.send(wire.request(0, 1, 0, 1))
            while server.net.stats.bytes_served < 400_000:
                await quick.send(wire.pack(Kind.PING))
                await quick.frame(Kind.PING)
            await quick.send(wire.request(0, 1, 1, 1))
            assert (await quick.frame()).kind == Kind.BUSY
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await slow.frame(Kind.DATA)


def test_the_kernel_knows_when_the_last_byte_came(pair: Pair) -> None:
    sender, reader = pair
    time.sleep(0.3)
    assert 0.2 < tcp_info.quiet_s(reader) < 30
    sender.send(b"x")
    assert reader.recv(1) == b"x"
    assert tcp_info.quiet_s(reader) < 0.2
    reader.close()
    assert tcp_info.quiet_s(reader) == math.inf


def test_congestion_control_is_that_of_the_settings() -> None:
    with socket.socket() as sock:
        tcp_info.use_congestion_control(sock, "reno")
        used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert used.rstrip(b"\0") == b"reno"
        tcp_info.use_congestion_control(sock, "none-such")  # it goes on with what it had
    tcp_info.check_congestion_control("reno")
    with pytest.raises(UsageError, match="tcp_allowed_congestion_control"):
        tcp_info.check_congestion_control("none-such")


def test_a_closed_socket_tells_nothing_on_either_loop() -> None:
    """uvloop's raises ValueError. An agent died of it when its tracker was killed between two turns of the loop."""

    async def closed() -> float:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            sock = writer.get_extra_info("socket")
            writer.transport.abort()
            while sock.fileno() >= 0:
                await asyncio.sleep(0.01)
            return tcp_info.quiet_s(sock)

    assert asyncio.run(closed()) == math.inf
    assert uvloop.run(closed()) == math.inf

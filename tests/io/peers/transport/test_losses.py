"""A connection whose line loses packets."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from p2pcache.core.upload.random_loss import LossSample
from p2pcache.core.upload.settings import LOSSY_WINDOWS, WINDOW_SEGMENTS
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.transport import connection as connections
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.channel import Plain
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import Inbox

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What congestion controls were set; the line loses one packet in a hundred."""
    sent = iter(range(1, 100))
    found: list[str] = []

    def counts(_: socket.socket) -> LossSample:
        segments = next(sent) * WINDOW_SEGMENTS
        return LossSample(segments, segments // 100, 0.041, 0.04)

    def use(_: socket.socket, name: str) -> bool:
        found.append(name)
        return True

    monkeypatch.setattr(tcp_info, "loss_sample", counts)
    monkeypatch.setattr(tcp_info, "use_congestion_control", use)
    monkeypatch.setattr(connections, "_told_of_losses", threading.Event())
    return found


async def over_a_bad_line(pair: Pair, limits: PeerLimits) -> None:
    """Some uploads that each are a window."""
    loop = asyncio.get_running_loop()
    connection = Connection(
        Plain(pair[0]), loop, Inbox(loop), limits, accepts=frozenset(), disarm=lambda _: None
    )
    for _ in range(LOSSY_WINDOWS + 2):
        connection.bytes_out += connections.LOOK_BYTES
        for _ in range(5):  # what is sent between two looks counts once
            connection.mind_losses()


async def test_it_goes_on_with_what_losses_dont_slow(pair: Pair, used: list[str]) -> None:
    await over_a_bad_line(pair, PeerLimits())
    assert used == ["bbr"]


async def test_what_the_operator_chose_stays(pair: Pair, used: list[str]) -> None:
    await over_a_bad_line(pair, PeerLimits(congestion="cubic"))
    assert used == ["cubic"]


@pytest.mark.usefixtures("used")
async def test_a_kernel_that_forbids_it_is_told_of_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_info, "use_congestion_control", lambda *_: False)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        await over_a_bad_line(pair, PeerLimits())
    assert caplog.text.count("tcp_allowed_congestion_control") == 1


def test_the_kernel_counts_segments_and_round_trips(pair: Pair) -> None:
    one, other = pair
    one.setblocking(False)
    other.settimeout(5)
    sent = read = 0
    while read < 4 << 20:
        try:
            sent += one.send(bytes(1 << 18))
        except BlockingIOError:
            read += len(other.recv(1 << 20))
    counts = tcp_info.loss_sample(one)
    assert 50 < counts.segments <= sent
    assert counts.sent_again <= counts.segments / 10
    assert 0 < counts.min_rtt_s <= counts.rtt_s < 1

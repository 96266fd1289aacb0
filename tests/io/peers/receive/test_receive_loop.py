"""SO_RCVLOWAT: few wake-ups, but never so few that the kernel's buffer can't grow on a long way."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from p2pcache.io.peers.receive.receive_loop import FAR_SHARE, LOWAT_BYTES, set_lowat
from p2pcache.io.peers.transport.connection import Connection


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        with server:
            yield client


def connection(sock: socket.socket, *, remaining: int, far: bool) -> Any:
    return SimpleNamespace(
        sock=sock, far=far, lowat=1, channel=SimpleNamespace(hidden=0),
        state=SimpleNamespace(data=SimpleNamespace(remaining=remaining)),
    )  # fmt: skip


def lowat(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def buffer(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


@pytest.mark.parametrize("remaining", [256 << 10, 16 << 20])
def test_with_a_long_round_trip_the_buffer_is_read_before_it_is_full(
    sock: socket.socket, remaining: int
) -> None:
    before = buffer(sock)
    set_lowat(cast("Connection", connection(sock, remaining=remaining, far=True)))
    assert lowat(sock) == before // FAR_SHARE
    assert buffer(sock) == before, "the kernel's own tuning is left alone"


def test_on_a_short_way_one_wake_up_brings_much(sock: socket.socket) -> None:
    near = connection(sock, remaining=16 << 20, far=False)
    set_lowat(cast("Connection", near))
    assert lowat(sock) == near.lowat == LOWAT_BYTES
    near.state.data.remaining = 100
    set_lowat(cast("Connection", near))
    assert lowat(sock) == 100
    near.state.data = None
    set_lowat(cast("Connection", near))
    assert lowat(sock) == 1

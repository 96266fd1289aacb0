"""Servers that answer next to nothing, and disks that can't be read."""

import errno
import logging
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from p2pcache.core.swarm.events import Outcome
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.wire import Kind
from p2pcache.io.peers.request.requests import TrickleDetector
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.connection import Connection
from tests.io.peers import raw
from tests.io.peers.kit import QUICK, make_model, node

MODEL = make_model([262_144] * 4, seed=3)
DIGEST = MODEL.layout.digest


def brings(bytes_per_s: float, *, waits: int = 0, asked: bool = True, paused: bool = False) -> bool:
    """Whether a connection that brings so much is given up within three stalls' time."""
    limits = PeerLimits()
    connection = SimpleNamespace(
        open=True, expected={1: None} if asked else {}, paused=paused, lowat=1 << 19, fd=-1,
        reading=SimpleNamespace(locked=lambda: False), bytes_in=0,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp_info, "unread", lambda _: waits)
        start = time.monotonic()
        detector = TrickleDetector(limits)
        for second in range(1, int(3 * limits.stall_s)):
            connection.bytes_in = int(second * bytes_per_s)
            if detector.is_trickle(cast("Connection", connection), start + second):
                return True
    return False


def test_a_trickle_is_given_up_and_a_slow_link_is_not() -> None:
    assert brings(1)
    assert brings(PeerLimits().least_bytes_per_s / 2)
    assert not brings(2 * PeerLimits().least_bytes_per_s)
    assert not brings(0), "silence has limits of its own"


def test_without_requests_or_while_paused_nothing_is_a_trickle() -> None:
    assert not brings(1, asked=False)
    assert not brings(1, paused=True)
    assert not brings(1, waits=1 << 20)


@pytest.fixture
def told() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("p2pcache.io.peers.serve.uploads").addHandler(handler)
    yield lines
    logging.getLogger("p2pcache.io.peers.serve.uploads").removeHandler(handler)


async def test_a_chunk_that_the_disk_cant_read_is_refused_and_offered_no_more(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with node(1) as server, node(2) as client:
        served = server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        client.net.dial(DIGEST, 1, server.address)
        await port.heard("joined", 1, served.store.have_runs())
        monkeypatch.setattr(os, "pread", fails)
        client.net.request(DIGEST, 7, 1, 2)
        assert await port.end(7) is Outcome.REFUSED
        assert 2 not in served.store.have
        assert "Input/output error" in told[0]


async def test_a_server_that_never_says_joined_is_given_up() -> None:
    async def silent(peer: raw.RawPeer) -> None:
        await raw.welcome(peer, 1)
        await peer.frame(Kind.JOIN)
        await peer.is_dropped()

    async with node(2, limits=QUICK) as client:
        port = client.swarm(MODEL)
        async with raw.evil_server(silent) as address:
            client.net.dial(DIGEST, 1, address)
            await port.heard("failed", 1)

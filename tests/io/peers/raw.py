"""Peers driven by hand, frame by frame: the attackers of the tests."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from p2pcache.core.protocol import handshake
from p2pcache.core.protocol.handshake import Challenge, Hello, Secret
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.wire import Frame, Kind
from tests.io.peers.kit import KEY, Model, Node

NONCE = b"n" * 32


class RawPeer:
    """One connection; every read has a limit, so a test never hangs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.challenge = Challenge(b"", ())

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def frame(self, kind: Kind | None = None, timeout_s: float = 30.0) -> Frame:
        """The next frame (of a kind: others are skipped)."""
        async with asyncio.timeout(timeout_s):
            while True:
                *head, length = wire.HEADER.unpack(await self.reader.readexactly(wire.HEADER_BYTES))
                kind_, flags, stream, a, b = head
                payload = await self.reader.readexactly(length)
                frame = Frame(kind_, flags, stream, a, b, payload)
                if kind is None or frame.kind == kind:
                    return frame

    async def is_dropped(self, timeout_s: float = 30.0) -> list[int]:
        """Read until the other side hangs up; the kinds of frames that came before."""
        kinds: list[int] = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kinds.append((await self.frame(timeout_s=timeout_s)).kind)
        return kinds

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect(node: Node, *, window: int = 0) -> RawPeer:
    """A bare TCP connection to a node; `window` bytes of receive buffer (0: the system's way)."""
    sock = socket.socket()
    if window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.settimeout(0.0)
    await asyncio.get_running_loop().sock_connect(sock, node.where)
    return RawPeer(*await asyncio.open_connection(sock=sock))


async def challenged(node: Node, *, window: int = 0) -> RawPeer:
    """As `connect`, with the CHALLENGE read."""
    peer = await connect(node, window=window)
    peer.challenge = wire.parse_greeting(await peer.frame(Kind.CHALLENGE), Challenge)
    return peer


def hello(challenge: Challenge, number: int, secret: Secret = KEY) -> bytes:
    """A HELLO that is right for this challenge."""
    said = handshake.hello(secret, challenge, nonce=NONCE, node=number, role="peer")
    return wire.greeting(Kind.HELLO, said)


async def member(node: Node, number: int, *, window: int = 0) -> RawPeer:
    """A requester whose handshake is over."""
    peer = await challenged(node, window=window)
    await peer.send(hello(peer.challenge, number))
    await peer.frame(Kind.WELCOME)
    return peer


async def joined(node: Node, model: Model, number: int, stream: int = 0) -> RawPeer:
    """A requester that joined a model."""
    peer = await member(node, number)
    await peer.send(join(model, stream))
    assert not (await peer.frame(Kind.JOINED)).flags
    return peer


def join(model: Model, stream: int = 0, have: int = 0) -> bytes:
    layout = model.layout
    return wire.join(stream, wire.Join(layout.digest, "", layout.run_count, have, True))


async def welcome(peer: RawPeer, number: int, secret: Secret = KEY) -> None:
    """The server's half of the handshake."""
    challenge = Challenge(NONCE, handshake.VERSIONS)
    await peer.send(wire.greeting(Kind.CHALLENGE, challenge))
    said = wire.parse_greeting(await peer.frame(Kind.HELLO), Hello)
    # `accept` with the client's own key, so that a server with another one gets this far too.
    good = handshake.accept(KEY, challenge, said, node=number, role="peer")
    if secret is not KEY:
        forged = handshake._server_proof(secret.key, challenge, said, number)
        good = handshake.Welcome(number, forged)
    await peer.send(wire.greeting(Kind.WELCOME, good))


@contextlib.asynccontextmanager
async def evil_server(behave: Callable[[RawPeer], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that does `behave` to each connection; yields its address."""
    peers: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peers.append(task)
        peer = RawPeer(reader, writer)
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        ):
            await behave(peer)
        await peer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in peers:
            task.cancel()
        await asyncio.gather(*peers, return_exceptions=True)
        await server.wait_closed()


async def serve_model(peer: RawPeer, model: Model, number: int) -> None:
    """Handshake and JOINED with everything; the rest is the attack's own."""
    await welcome(peer, number)
    frame = await peer.frame(Kind.JOIN)
    count = model.layout.run_count
    await peer.send(wire.joined(frame.stream, count, 0, (1 << count) - 1))


def data(frame: Frame, chunk: int, payload: bytes) -> bytes:
    """A DATA frame that answers a REQUEST frame."""
    return wire.data_header(frame.stream, frame.a, chunk, len(payload)) + payload

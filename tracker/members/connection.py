"""One member's WebSocket: the handshake, a bounded outbox, a paced reader."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import web

from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.handshake import (
    NONCE_BYTES,
    VERSIONS,
    Challenge,
    Hello,
    Secret,
    accept,
)
from p2pcache.errors import NotAllowed, RemoteProtocolError
from p2pcache.ids import NodeId, format_node
from p2pcache.io.clock import Clock

_log = logging.getLogger(__name__)

MAX_HANDSHAKE_BYTES = 1024  # docs/protocol.md
SEND_S = 10.0  # a member that reads nothing for this long is dropped
CLOSE_S = 2.0  # for the other side's half of a goodbye
MAX_BEHIND_BYTES = 64 << 20  # the outbox of a member that reads too slowly
# A transport with less than this in its buffer accepts more without a wait.
AT_ONCE_BYTES = 16 << 10
RATE = 2000.0  # messages a second from one member, on average
BURST = 6000.0  # messages at once; a long one counts as several
BYTES_PER_TOKEN = 4096

_ENDS = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


async def greet(
    socket: web.WebSocketResponse, secret: Secret, node: NodeId, bearer: Member | None = None
) -> int:
    """The tracker's side of the handshake; return the member's node id.

    Args:
        socket: the connection.
        secret: the cluster key.
        node: our own id.
        bearer: the member that the client's certificate names, if members show one.

    Raises:
        NotAllowed: it holds another key, or names a node id that isn't its own.
        RemoteProtocolError: it breaks the protocol.
    """
    challenge = Challenge(os.urandom(NONCE_BYTES), VERSIONS)
    await socket.send_bytes(msgspec.msgpack.encode(challenge))
    data = await receive(socket, MAX_HANDSHAKE_BYTES)
    try:
        said = msgspec.msgpack.decode(data, type=Hello)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"not a HELLO: {error}") from None
    if bearer is not None and not bearer.owns(said.node):
        raise NotAllowed(f"node {format_node(said.node)} is not one of {bearer}")
    welcome = accept(secret, challenge, said, node=node, role="agent")
    await socket.send_bytes(msgspec.msgpack.encode(welcome))
    return said.node


async def receive(socket: web.WebSocketResponse, limit_bytes: int) -> bytes:
    """The next binary message.

    Raises:
        RemoteProtocolError: it is too large, of another kind, or the end.
    """
    frame = await socket.receive()
    if frame.type is not aiohttp.WSMsgType.BINARY:
        raise RemoteProtocolError("the connection ended before it was a member's")
    data: bytes = frame.data
    if len(data) > limit_bytes:
        raise RemoteProtocolError(f"a message of {len(data)} bytes during the handshake")
    return data


class Connection:
    """A member's connection after the handshake.

    Messages go out in the order of `queue_message`. Invariant: `_behind` is the sum of the sizes in `_outbox`.
    """

    def __init__(
        self,
        node: NodeId,
        socket: web.WebSocketResponse,
        request: web.Request,
        clock: Clock,
        bearer: Member | None = None,
    ) -> None:
        self.node = node
        self.bearer = bearer  # of its certificate, if members show one
        self.unanswered = 0  # unanswered questions
        self._socket = socket
        self._transport = request.transport
        self._clock = clock
        self._outbox: deque[bytes] = deque()
        self._behind = 0
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._goodbye: tuple[int, bytes] | None = None
        self._tokens = BURST
        self._refilled = clock.now()

    def queue_message(self, data: bytes, *, later: bool = False) -> None:
        """Queue a message. A member with too many unsent bytes is cut off; it will reconnect and announce itself.

        Args:
            data: the message.
            later: it may wait in the queue until `rouse` or the next message.
        """
        if self._goodbye is not None:
            return
        self._outbox.append(data)
        self._behind += len(data)
        if self._behind > MAX_BEHIND_BYTES:
            _log.warning("member %016x reads too slowly; cutting it off", self.node)
            self.close(aiohttp.WSCloseCode.TRY_AGAIN_LATER, "you read too slowly")
            self._abort()
        if not later:
            self.rouse()

    def rouse(self) -> None:
        """Send the queue now, as far as the transport takes it without a wait; `write` sends the rest."""
        # It saves a turn of the loop for each answer, which is long while a storm begins.
        while self._outbox and self._goes_at_once(self._outbox[0]):
            self._send_now(self._outbox.popleft())
        if self._outbox:
            self._wake.set()

    def _send_now(self, data: bytes) -> None:
        self._behind -= len(data)
        sending = self._socket.send_bytes(data)
        try:
            sending.send(None)  # runs the whole coroutine: it writes, and has no reason to wait
        except StopIteration:
            pass
        except (ConnectionError, aiohttp.ClientError, RuntimeError) as error:
            self.close(aiohttp.WSCloseCode.GOING_AWAY, str(error))
        finally:
            sending.close()

    def close(self, code: int, reason: str) -> None:
        """Say goodbye after the queue is sent. Later messages are dropped."""
        if self._goodbye is None:
            self._goodbye = (code, reason.encode()[:120])  # a close frame holds 123 bytes of it
            self._wake.set()

    async def write(self) -> None:
        """Send the queue until the goodbye is said or the connection breaks."""
        try:
            while True:
                while self._outbox:
                    data = self._outbox.popleft()
                    self._behind -= len(data)
                    async with asyncio.timeout(SEND_S):
                        await self._socket.send_bytes(data)
                if self._goodbye is not None:
                    break
                self._wake.clear()
                await self._wake.wait()
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close(code=self._goodbye[0], message=self._goodbye[1])
        except (ConnectionError, TimeoutError, aiohttp.ClientError, RuntimeError) as error:
            _log.debug("member %016x: %s", self.node, str(error) or type(error).__name__)
        finally:
            self._goodbye = self._goodbye or (aiohttp.WSCloseCode.GOING_AWAY, b"")
            self._abort()
            self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the goodbye is said or the connection is broken."""
        await self._ended.wait()

    async def read_messages(self, take: Callable[[m.ToTracker], bool]) -> None:
        """Hand messages to `take`, within the rate, until it returns False or the connection ends.

        Raises:
            RemoteProtocolError: a frame is no message of this protocol.
        """
        # Without iterators: each message would make new coroutines for them, which the garbage collector examines.
        while True:
            try:
                frame = await self._socket.receive()
            except ConnectionError:
                return  # aiohttp couldn't answer a ping that waited: its sender is gone
            if frame.type in _ENDS:
                return
            if frame.type is not aiohttp.WSMsgType.BINARY:
                cause = f": {frame.data}" if frame.type is aiohttp.WSMsgType.ERROR else ""
                raise RemoteProtocolError(f"unexpected {frame.type.name} frame{cause}")
            await self._pace(len(frame.data))
            if not take(m.decode_to_tracker(frame.data)):
                return

    def _goes_at_once(self, data: bytes) -> bool:
        """Whether the transport takes this without a wait for the member to read."""
        behind = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return behind + len(data) < AT_ONCE_BYTES

    async def _pace(self, size: int) -> None:
        """Wait until the rate allows the message: TCP makes the sender wait, too."""
        self._tokens -= 1 + size / BYTES_PER_TOKEN
        if self._tokens > 0:
            return
        now = self._clock.now()
        self._tokens = min(BURST, self._tokens + (now - self._refilled) * RATE)
        self._refilled = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / RATE)

    def _abort(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

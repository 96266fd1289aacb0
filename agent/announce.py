"""The agent's one persistent connection to the tracker: handshake, announce, heartbeats, questions.

The link reconnects for ever with growing pauses. Everything that the tracker must know is told
again with each `Announce`, so a lost connection or a restarted tracker costs nothing but time.
"""

import asyncio
import contextlib
import logging
import os
import random
import ssl
import time
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from p2pcache.core import messages as m
from p2pcache.core.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.errors import (
    NotAllowed,
    P2PCacheError,
    RemoteProtocolError,
    Unreachable,
    UsageError,
    from_code,
)
from p2pcache.io.tasks import Tasks
from p2pcache.io.tls import Tls, check_role, expiry_warning, explain

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0  # docs/protocol.md
FIRST_RETRY_S = 0.2  # a restarted tracker is found again quickly ...
LAST_RETRY_S = 5.0  # ... and a dead one is not hammered
MAX_HANDSHAKE_BYTES = 1024


class TrackerHandler(Protocol):
    """What the link calls, on the loop thread."""

    def announcement(self) -> m.Announce:
        """The agent's whole state, for a fresh connection."""

    def heartbeat(self) -> m.Heartbeat:
        """The agent's state worth a heartbeat."""

    def tracker_up(self, settled: m.Settled) -> None:
        """We are a member."""

    def tracker_down(self) -> None:
        """We are no longer."""

    def tracker_said(self, message: m.ToAgent) -> None:
        """Any message but `Settled`, `Answer` and `Refusal`."""


class TrackerLink:
    """One member connection.

    `connected` is true between `tracker_up` and `tracker_down`; `epoch` is the tracker's of the
    last connection. `tried` is set once the first attempt to connect is over.
    """

    def __init__(
        self,
        *,
        url: str,
        node: int,
        secret: Secret,
        handler: TrackerHandler,
        tasks: Tasks,
        rng: random.Random,
        tls: Tls | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"not a tracker's URL: {url!r}; expected http://HOST:PORT")
        if tls is not None and not url.startswith("https://"):
            raise UsageError(f"in mTLS mode the tracker's URL begins with https://; {url} doesn't")
        self.url = url.rstrip("/")
        self.connected = False
        self.epoch = 0
        self.tried = asyncio.Event()
        self.last_error = "not connected yet"
        # Why the last attempt failed, if key or certificate was the cause.
        self.refusal: NotAllowed | None = None
        self.heartbeat_at = 0.0  # unix seconds of the last one that was sent
        self.losses = 0  # connections that broke, since start
        self._node = node
        self._secret = secret
        self._handler = handler
        self._tasks = tasks
        self._rng = rng
        self._tls = tls
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._outbox: asyncio.Queue[m.ToTracker] = asyncio.Queue()
        self._questions: dict[int, asyncio.Future[m.Answer]] = {}
        self._next_question = 1
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until `close`."""
        pause = FIRST_RETRY_S
        async with aiohttp.ClientSession() as session:
            while not self._closing.is_set():
                try:
                    await self._member(session)
                    pause = FIRST_RETRY_S
                except (P2PCacheError, aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._note(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause * self._rng.uniform(0.5, 1.5)):
                        await self._closing.wait()
                pause = min(LAST_RETRY_S, pause * 2)

    async def close(self) -> None:
        """Say goodbye, so that the tracker forgets us at once."""
        self._closing.set()
        socket = self._socket
        if socket is not None and self.connected:
            try:
                async with asyncio.timeout(2):
                    while not self._outbox.empty():  # lease reports that wait belong to the swarm
                        await socket.send_bytes(m.encode(self._outbox.get_nowait()))
                    await socket.send_bytes(m.encode(m.Leaving()))
                    await socket.close()
            except (aiohttp.ClientError, OSError, TimeoutError):
                log.debug("the tracker didn't hear our goodbye")

    def send(self, message: m.ToTracker) -> None:
        """Queue a message; lost when the link is down (the next `Announce` tells all)."""
        if self.connected:
            self._outbox.put_nowait(message)

    async def ask(
        self, what: str, text: str = "", offset: int = 0, *, timeout_s: float = 15.0
    ) -> m.Answer:
        """Ask one question.

        Raises:
            Unreachable: no tracker, or no answer in time.
            P2PCacheError: the tracker's refusal, by its code.
        """
        if not self.connected:
            raise Unreachable(f"tracker {self.url} is not reachable: {self.last_error}")
        number = self._next_question
        self._next_question += 1
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._questions[number] = future
        try:
            self._outbox.put_nowait(m.Ask(number, what, text, offset))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise Unreachable(
                f"tracker {self.url} didn't answer {what!r} in {timeout_s:.0f} s"
            ) from None
        finally:
            del self._questions[number]

    async def _member(self, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(
            f"{self.url}/v1/member", max_msg_size=m.MAX_MESSAGE_BYTES, autoping=True, compress=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
            ssl=True if self._tls is None else self._tls.now.client,
        ) as socket:  # fmt: skip
            if self._tls is not None:
                check_role(socket.get_extra_info("peercert"), "tracker")
            async with asyncio.timeout(HANDSHAKE_S):
                await self._handshake(socket)
                await socket.send_bytes(m.encode(self._handler.announcement()))
                settled = m.decode_to_agent(await _binary(socket, m.MAX_MESSAGE_BYTES))
            if not isinstance(settled, m.Settled):
                raise RemoteProtocolError("the tracker's first message isn't Settled")
            self._socket, self.connected, self.epoch = socket, True, settled.epoch
            self.refusal = None
            self.tried.set()
            self._outbox = asyncio.Queue()
            log.info("member of the cluster at %s", self.url)
            writers = [
                self._tasks.spawn(self._write(socket), name="tracker-write"),
                self._tasks.spawn(self._beat(settled.heartbeat_s), name="tracker-heartbeat"),
            ]
            try:
                self._handler.tracker_up(settled)
                await self._read(socket)
            finally:
                self._went_down()
                for task in writers:
                    task.cancel()

    async def _handshake(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            challenge = msgspec.msgpack.decode(
                await _binary(socket, MAX_HANDSHAKE_BYTES), type=Challenge
            )
            said = hello(
                self._secret,
                challenge,
                nonce=os.urandom(NONCE_BYTES),
                node=self._node,
                role="agent",
            )
            await socket.send_bytes(msgspec.msgpack.encode(said))
            welcome = msgspec.msgpack.decode(
                await _binary(socket, MAX_HANDSHAKE_BYTES), type=Welcome
            )
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(
                f"{self.url} doesn't speak the member protocol: {error}"
            ) from None
        confirm(self._secret, challenge, said, welcome)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                raise RemoteProtocolError(f"unexpected {frame.type.name} frame from the tracker")
            message = m.decode_to_agent(frame.data)
            if isinstance(message, m.Answer | m.Refusal):
                self._answered(message)
            elif not isinstance(message, m.Settled):
                self._handler.tracker_said(message)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        outbox = self._outbox
        try:
            while True:
                await socket.send_bytes(m.encode(await outbox.get()))
        except (aiohttp.ClientError, OSError):
            await socket.close()  # the reader then ends, and with it the connection

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s * self._rng.uniform(0.8, 1.2))
            self.send(self._handler.heartbeat())
            self.heartbeat_at = time.time()

    def _answered(self, message: m.Answer | m.Refusal) -> None:
        future = self._questions.get(message.id)
        if future is None or future.done():
            return
        if isinstance(message, m.Answer):
            future.set_result(message)
        else:
            future.set_exception(from_code(message.code, message.message))

    def _went_down(self) -> None:
        self._socket, self.connected = None, False
        self.losses += not self._closing.is_set()
        self.last_error = "connection lost"
        for future in self._questions.values():
            if not future.done():
                future.set_exception(Unreachable(f"connection to tracker {self.url} was lost"))
        self._handler.tracker_down()
        if not self._closing.is_set():
            log.warning("lost the tracker at %s; going on without it, reconnecting", self.url)

    def _note(self, error: Exception) -> None:
        self.tried.set()
        text = _said(error)
        if self._tls is not None and isinstance(error, aiohttp.ServerDisconnectedError):
            # In TLS 1.3 a refusal comes after our side is done, and asyncio's servers keep mute.
            text = f"it hung up on {self._tls.member}; does it know our CA? Its log says why"
            text = expiry_warning(self._tls.expires_at, time.time()) or text
        elif isinstance(error, aiohttp.ServerDisconnectedError):
            text = "it hung up on us; where members show certificates its URL begins with https://"
        if text != self.last_error:  # once per cause, not once per retry
            level = logging.ERROR if isinstance(error, NotAllowed) else logging.WARNING
            log.log(level, "tracker %s: %s", self.url, text)
        self.last_error = text
        self.refusal = NotAllowed(f"tracker {self.url}: {text}") if _denied(error) else None


def _denied(error: Exception) -> bool:
    """Whether key or certificate, ours or the tracker's, was the cause: trying again won't help."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return error.status == 403
    return isinstance(error, NotAllowed | aiohttp.ClientConnectorCertificateError)


def _said(error: Exception) -> str:
    """A failed connection in one line."""
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
        return "it refuses our certificate; its log says why"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return explain(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):  # its own text shows the SSL context
        cause = error.os_error
        if isinstance(cause, ssl.SSLError):
            return explain(cause)
        refused = isinstance(cause, ConnectionRefusedError)  # asyncio's text for it is no sentence
        return f"can't connect: {'connection refused' if refused else cause.strerror or cause}"
    return explain(error)


async def _binary(socket: aiohttp.ClientWebSocketResponse, limit: int) -> bytes:
    frame = await socket.receive()
    if frame.type is not aiohttp.WSMsgType.BINARY:
        reason = f": {frame.extra}" if frame.type is aiohttp.WSMsgType.CLOSE and frame.extra else ""
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == m.NOT_ALLOWED:
            raise NotAllowed(f"it refuses this node{reason}")
        raise RemoteProtocolError(f"the tracker closed the connection during the handshake{reason}")
    data: bytes = frame.data
    if len(data) > limit:
        raise RemoteProtocolError("the tracker sent an oversized handshake frame")
    return data

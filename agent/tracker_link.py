"""The agent's one persistent connection to the tracker: handshake, announce, heartbeats, questions.

The link reconnects for ever with growing pauses. Each `Announce` contains all that the tracker must know, so a
lost connection or a restarted tracker costs time only.

The link pings a quiet tracker, and every WebSocket server answers that. `core.protocol.silence` decides when to doubt
one that doesn't answer. While a tracker is doubted the link is down for the rest of the agent.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from typing import Protocol

import aiohttp
import msgspec

from p2pcache.agent import link_trouble
from p2pcache.agent.tracker_handshake import handshake, settle
from p2pcache.agent.tracker_route import PinnedResolver, Target, TrackerRoute
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.silence import Silence, Step
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError, Unreachable, from_code
from p2pcache.ids import NodeId
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.security.tls import Tls, check_role
from p2pcache.io.tasks import Tasks

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0  # docs/protocol.md; to connect, and then to `Settled`
DIAL_S = 3.0  # to connect, while another tracker may be the active one
SILENCE_S = 10.0  # docs/protocol.md
SILENCE_OF_SEVERAL_S = 5.0  # another one may be the active one by then
GOODBYE_S = 2.0  # for each side's half of a goodbye
FIRST_RETRY_S = 0.2  # the first pause, so that a restarted tracker is found again quickly
LAST_RETRY_S = 5.0  # the longest pause, so that a dead tracker is not dialled too often


class TrackerHandler(Protocol):
    """The calls that the link makes, on the loop's thread."""

    def announcement(self) -> m.Announce:
        """The agent's whole state, for a fresh connection."""

    def heartbeat(self) -> m.Heartbeat:
        """The agent's state for a heartbeat."""

    def tracker_up(self, settled: m.Settled) -> None:
        """This node is a member now."""

    def tracker_down(self) -> None:
        """This node is no member any more."""

    def tracker_said(self, message: m.ToAgent) -> None:
        """A message came; the link handles `Settled`, `Answer` and `Refusal` itself."""


class TrackerLink:
    """One member connection.

    `connected` is true between `tracker_up` and `tracker_down`; grants that come outside are void. `epoch` is the
    tracker's of the last connection, `fenced` whether it is one of several. `tried`: an attempt to connect is over.
    """

    def __init__(
        self,
        *,
        url: str,
        node: NodeId,
        secret: Secret,
        handler: TrackerHandler,
        tasks: Tasks,
        rng: random.Random,
        tls: Tls | None = None,
        cache_dir: str = "",
        silence_s: float = 0.0,
    ) -> None:
        """A link that dials when `run` is called.

        Args:
            url: of the tracker; of several, separated by commas.
            node: our id.
            secret: the cluster key.
            handler: is called for each event.
            tasks: run the parts of a connection.
            rng: spreads pauses and heartbeats.
            tls: our certificate; the connection is then TLS.
            cache_dir: the directory of our node id, for people.
            silence_s: a tracker that is silent for this many seconds is lost; 0: the usual time.

        Raises:
            UsageError: it is no URL, or has another scheme than the cluster's members use.
        """
        self._route = TrackerRoute(url, tls=tls is not None)
        self.url = self._route.urls[0]  # of the tracker that we are with, or dialled last
        self.connected = False
        self.epoch, self.fenced = 0, False
        self.tried = asyncio.Event()
        self.last_error = "not connected yet"
        self.refusal: NotAllowed | None = None  # of key or certificate, by the last attempt
        self.heartbeat_at = 0.0  # unix seconds of the last one that was sent
        self.changed_at = time.time()  # unix seconds of the last change of `connected`
        self.local_host = ""  # our address on the last connection
        self.losses = 0  # times that the tracker was lost or doubted, since start
        self._node = node
        self._secret = secret
        self._handler = handler
        self._tasks = tasks
        self._rng = rng
        self._tls = tls
        self._cache_dir = cache_dir
        self._usual_s = silence_s
        self._silence = Silence(silence_s or SILENCE_S)
        self._newest = 0  # generation of a tenure that we met; what is older is void
        self._pause_s = FIRST_RETRY_S
        self._resolver = PinnedResolver()
        self._instance = secrets.randbits(63) or 1
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._outbox: asyncio.Queue[m.ToTracker | None] = asyncio.Queue()  # None: a ping
        self._questions: dict[int, asyncio.Future[m.Answer]] = {}
        self._last_question, self._asked_at = 0, 0.0
        self._closing = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why the link is down, for people."""
        return self._route.trouble or f"tracker {self.url} is not reachable: {self.last_error}"

    @property
    def may_move(self) -> bool:
        """Whether another tracker may take us within seconds."""
        return self.refusal is None and self._route.hopeful

    async def run(self) -> None:
        """Stay connected until `close`."""
        connector = aiohttp.TCPConnector(resolver=self._resolver, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._closing.is_set():
                target = await self._route.next_target()
                self.url, self._resolver.address = target.url, target.address
                try:
                    await self._member(session, target)
                except (P2PCacheError, aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._on_failure(target, error)
                if self._route.more:  # another tracker may be the active one
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s * self._rng.uniform(0.5, 1.5)):
                        await self._closing.wait()
                self._pause_s = min(LAST_RETRY_S, self._pause_s * 2)

    async def close(self) -> None:
        """Say goodbye, so that the tracker forgets this node at once."""
        self._closing.set()
        socket = self._socket
        if socket is not None and self.connected:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    while not self._outbox.empty():  # the tracker needs the lease reports in it
                        if (message := self._outbox.get_nowait()) is not None:
                            await socket.send_bytes(m.encode(message))
                    await socket.send_bytes(m.encode(m.Leaving()))
                    await socket.close()
            except (aiohttp.ClientError, OSError, TimeoutError):
                log.debug("the tracker didn't hear our goodbye")

    def send(self, message: m.ToTracker) -> None:
        """Queue a message. Without a connection it is dropped: the next `Announce` contains all."""
        if self.connected:
            self._outbox.put_nowait(message)

    async def ask(
        self, what: str, text: str = "", offset: int = 0, *, timeout_s: float = 15.0
    ) -> m.Answer:
        """Ask one question.

        Args:
            what: its kind, as in docs/protocol.md.
            text: its argument.
            offset: of the wanted part of a manifest, in bytes.
            timeout_s: for the answer.

        Raises:
            Unreachable: there is no connection, or no answer in time.
            P2PCacheError: the tracker refused; the class follows its code.
        """
        if not self.connected:
            raise link_trouble.Unanswered(self.trouble)
        number = self._last_question = self._last_question + 1
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._questions[number] = future
        try:
            self._outbox.put_nowait(m.Ask(number, what, text, offset))
            if self._silence.on_asked():
                self._asked_at = future.get_loop().time()
                self._outbox.put_nowait(None)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            why = f"tracker {self.url} didn't answer {what!r} in {timeout_s:.0f} s"
            raise link_trouble.Unanswered(why) from None
        finally:
            del self._questions[number]

    async def _member(self, session: aiohttp.ClientSession, target: Target) -> None:
        socket: aiohttp.ClientWebSocketResponse | None = None
        try:
            limit_s = DIAL_S if self._route.more else HANDSHAKE_S
            try:
                async with asyncio.timeout(limit_s):
                    socket = await self._dial(session)
                self._route.reached = target
                limit_s = HANDSHAKE_S
                async with asyncio.timeout(limit_s):
                    settled = await self._join(socket, target)
            except TimeoutError:
                raise Unreachable(f"it didn't answer in {limit_s:.0f} s") from None
            await self._stay(socket, settled, target)
            if socket.close_code == aiohttp.WSCloseCode.GOING_AWAY:  # it ends, or is a standby now
                self._route.on_lost(target, away=True)
        finally:
            if socket is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_S):  # it may not read
                        await socket.close()

    async def _dial(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        # Without `autoping` we see pongs, which are signs of life.
        socket = await session.ws_connect(
            f"{self.url}/v1/member", max_msg_size=m.MAX_MESSAGE_BYTES, autoping=False, compress=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_S),
            ssl=True if self._tls is None else self._tls.now.client,
        )  # fmt: skip
        self.local_host = str((socket.get_extra_info("sockname") or ("",))[0])
        return socket

    async def _join(self, socket: aiohttp.ClientWebSocketResponse, target: Target) -> m.Settled:
        if self._tls is not None:
            check_role(socket.get_extra_info("peercert"), "tracker")
        await handshake(socket, self._secret, self._node, self.url)
        await socket.send_bytes(m.encode(self._announcement()))
        try:
            settled = await settle(socket, self._route, target)
        except link_trouble.Twin as twin:
            text = link_trouble.twin_text(self._node, str(twin), self._cache_dir)
            raise NotAllowed(text) from None
        if settled.fenced and settled.epoch < self._newest:
            raise Unreachable(f"its generation {settled.epoch} is over: another was active later")
        self._newest = max(self._newest, settled.epoch if settled.fenced else 0)
        return settled

    async def _stay(
        self, socket: aiohttp.ClientWebSocketResponse, settled: m.Settled, target: Target
    ) -> None:
        """Be a member until the connection ends.

        Raises:
            Unreachable: the tracker was silent for too long.
        """
        self.tried.set()
        self._socket, self.refusal, self._pause_s = socket, None, FIRST_RETRY_S
        self._outbox = asyncio.Queue()
        several_s = SILENCE_OF_SEVERAL_S if self._route.several else SILENCE_S
        silence = self._silence = Silence(self._usual_s or several_s, settled.doubt_s)
        self._route.failures.clear()
        log.info("member of the cluster at %s", target)
        spawn = self._tasks.spawn
        helpers = [spawn(self._write(socket), name="tracker-write")]
        helpers.append(spawn(self._beat(settled.heartbeat_s), name="tracker-heartbeat"))
        why, silent = "connection lost", False
        try:
            async with asyncio.timeout(None) as alive:
                helpers.append(spawn(self._watch(socket, alive), name="tracker-watch"))
                self._go_up(settled)
                await self._read(socket)
        except TimeoutError:
            why, silent = f"it said nothing for {silence.lost_s:g} s", True
            raise Unreachable(why) from None
        finally:
            for task in helpers:
                task.cancel()
            self._route.on_lost(target, away=silent)
            self._socket, self.last_error = None, why
            if self.connected:
                self._go_down(f"{why}; reconnecting")

    async def _watch(self, socket: aiohttp.ClientWebSocketResponse, alive: asyncio.Timeout) -> None:
        """Look at the tracker until it is lost, and end `alive` then. Before each look messages are read."""
        loop, sock = asyncio.get_running_loop(), socket.get_extra_info("socket")
        silence = self._silence
        while True:
            looked = loop.time()
            await asyncio.sleep(silence.look_s)
            # The bytes of a long message over a slow link are signs of life; those before a question answer nothing.
            since = max(looked, self._asked_at)
            if sock is not None and tcp_info.quiet_s(sock) < loop.time() - since:
                silence.on_sign()
            match silence.on_look():
                case Step.PING:
                    self._outbox.put_nowait(None)
                case Step.DOUBT:
                    self.last_error = "it says nothing"
                    self._go_down(self.last_error)
                case Step.LOST:
                    alive.reschedule(loop.time())
                    return

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        told = False  # the announcement that ends a doubt
        async for frame in socket:
            self._silence.on_sign()
            if self._silence.doubted and not told:
                told = True
                self._outbox.put_nowait(self._announcement())
            if frame.type is aiohttp.WSMsgType.PONG:
                continue
            if frame.type is aiohttp.WSMsgType.PING:
                await socket.pong(frame.data)
                continue
            if frame.type is not aiohttp.WSMsgType.BINARY:
                raise RemoteProtocolError(f"unexpected {frame.type.name} frame from the tracker")
            message = m.decode_to_agent(frame.data)
            if isinstance(message, m.Answer | m.Refusal):
                self._answered(message)
            elif isinstance(message, m.Grant) and message.epoch != self.epoch:
                log.debug("void: a grant of epoch %d", message.epoch)
            elif isinstance(message, m.Settled) and self._silence.doubted:
                told = False
                self._silence.on_settled()
                log.info("the tracker at %s speaks again", self.url)
                self._go_up(message)
            elif self.connected and not isinstance(message, m.Settled | m.Standby):
                self._handler.tracker_said(message)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        outbox = self._outbox
        try:
            while True:
                message = await outbox.get()
                if message is None:
                    await socket.ping()
                else:
                    await socket.send_bytes(m.encode(message))
        except (aiohttp.ClientError, OSError):
            await socket.close()  # this ends the reader, too

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

    def _announcement(self) -> m.Announce:
        return msgspec.structs.replace(self._handler.announcement(), instance=self._instance)

    def _go_up(self, settled: m.Settled) -> None:
        self.connected, self.epoch, self.fenced = True, settled.epoch, settled.fenced
        self.changed_at = time.time()
        self._handler.tracker_up(settled)

    def _go_down(self, why: str) -> None:
        self.connected = False
        self.changed_at = time.time()
        self.losses += not self._closing.is_set()
        for future in self._questions.values():
            if not future.done():
                future.set_exception(link_trouble.Unanswered(f"tracker {self.url} was lost"))
        self._handler.tracker_down()
        if not self._closing.is_set():
            log.warning("lost the tracker at %s (%s); going on without it", self.url, why)

    def _on_failure(self, target: Target, error: Exception) -> None:
        if isinstance(error, link_trouble.Elsewhere | link_trouble.NoneActive):
            self._pause_s = FIRST_RETRY_S  # a standby is there, so it won't be long
        elif target == self._route.standby:
            self._route.standby = None
        if isinstance(error, link_trouble.Elsewhere):
            return
        self.tried.set()
        text = link_trouble.failure_text(error, self._tls)
        denied = link_trouble.denied(error)
        if text != self._route.failures.get(target):  # once for each cause, not for each retry
            level = logging.ERROR if isinstance(error, NotAllowed) else logging.WARNING
            log.log(level, "tracker %s: %s", target, text)
        self._route.failures[target] = self.last_error = text
        self.refusal = NotAllowed(f"tracker {target}: {text}") if denied else None

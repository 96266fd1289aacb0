"""An agent's side of the member connection, by hand: real WebSockets, no swarm behind them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Self, TypeVar

import aiohttp
import msgspec

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.errors import from_code
from p2pcache.io.security.cluster_key import NO_KEY
from p2pcache.io.security.tls import Tls

M = TypeVar("M")
PATIENCE_S = 30.0


class FakeAgent:
    """Speaks `core.protocol.messages`. Everything that came is in `mail`; `read` decides what a grant does."""

    def __init__(self, node: int, secret: Secret = NO_KEY) -> None:
        self.node = node
        self.address = f"127.0.0.1:{7000 + node}"
        self.mail: list[m.ToAgent] = []
        self.closed: tuple[int, str] | None = None
        self.have: dict[str, int] = {}
        self.runs: dict[str, int] = {}  # run count by digest
        self.reading: dict[str, set[int]] = {}
        self.known: dict[str, set[int]] = {}
        self.origin_reads: list[int] = []
        self.credit = 1
        self.read_s = 0.0  # how long a read of the origin takes; below 0: for ever
        self.epoch = 0
        self.running: set[asyncio.Task[None]] = set()
        self._secret = secret
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._news = asyncio.Event()
        self._asked = 0

    # -- connection --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def member(
        self, address: str, *, announce: bool = True, tls: Tls | None = None
    ) -> AsyncIterator[Self]:
        """Be a member for the length of the block; leaving it breaks the connection."""
        async with aiohttp.ClientSession() as http:
            url = f"{'http' if tls is None else 'https'}://{address}/v1/member"
            context = True if tls is None else tls.now.client
            async with http.ws_connect(
                url, max_msg_size=m.MAX_MESSAGE_BYTES, ssl=context
            ) as socket:
                self._socket = socket
                self.closed = None
                await self.handshake(socket)
                reader = asyncio.get_running_loop().create_task(self._read(socket))
                try:
                    if announce:
                        await self.announce()
                        self.epoch = (await self.wait_for(m.Settled)).epoch
                    yield self
                finally:
                    reader.cancel()
                    for task in self.running:
                        task.cancel()
                    await asyncio.gather(reader, *self.running, return_exceptions=True)

    async def handshake(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        challenge = msgspec.msgpack.decode(await socket.receive_bytes(), type=Challenge)
        said = hello(
            self._secret, challenge, nonce=os.urandom(NONCE_BYTES), node=self.node, role="agent"
        )
        await socket.send_bytes(msgspec.msgpack.encode(said))
        welcome = msgspec.msgpack.decode(await socket.receive_bytes(), type=Welcome)
        confirm(self._secret, challenge, said, welcome)

    async def send(self, message: m.ToTracker) -> None:
        assert self._socket is not None
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(m.encode(message))

    async def send_raw(self, data: bytes) -> None:
        assert self._socket is not None
        with contextlib.suppress(ConnectionError):
            await self._socket.send_bytes(data)

    async def announce(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(m.Announce(self.address, "0.1", swarms=states))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                break
            message = m.decode_to_agent(frame.data)
            self.mail.append(message)
            await self._behave(message)
            self._news.set()
        reason = socket.exception()
        self.closed = (socket.close_code or 0, str(reason or ""))
        self._news.set()

    # -- behaviour ---------------------------------------------------------------------------------

    def state(self, digest: str) -> m.SwarmState:
        count, have = self.runs[digest], self.have.get(digest, 0)
        complete = have == bitset.full(count)
        return m.SwarmState(
            digest, count, b"" if complete else bitset.to_bytes(have, count), complete,
            0 if complete else self.credit, tuple(sorted(self.reading.get(digest, ()))),
            tuple(sorted(self.known.get(digest, ()))),
        )  # fmt: skip

    async def enter(self, digest: str, runs: int, have: int = 0) -> None:
        self.runs[digest] = runs
        self.have[digest] = have
        await self.send(m.Enter(self.state(digest)))

    async def beat(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(m.Heartbeat(3, states, 1000, 2000))

    async def _behave(self, message: m.ToAgent) -> None:
        match message:
            case m.Grant(digest, _, runs):
                self.reading.setdefault(digest, set()).update(runs)
                for run in runs:
                    task = asyncio.get_running_loop().create_task(self._fetch(digest, run))
                    self.running.add(task)
                    task.add_done_callback(self.running.discard)
            case m.Revoke(digest, runs):
                self.reading.setdefault(digest, set()).difference_update(runs)
            case m.Swarm(digest, _, full, joined, left):
                known = set() if full else self.known.get(digest, set())
                self.known[digest] = (known | {member.node for member in joined}) - set(left)
            case m.Poll():
                await self.beat()

    async def _fetch(self, digest: str, run: int) -> None:
        self.origin_reads.append(run)
        await asyncio.sleep(self.read_s if self.read_s >= 0 else 3600)
        if run in self.reading.get(digest, ()):
            self.reading[digest].discard(run)
            self.have[digest] |= 1 << run
            await self.send(m.LeaseReport(digest, self.epoch, done=(run,)))
            self._news.set()

    # -- looking -----------------------------------------------------------------------------------

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for news until `true()`."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def wait_for(self, kind: type[M]) -> M:
        """The latest message of a kind, once there is one."""
        await self.until(lambda: any(isinstance(x, kind) for x in self.mail))
        return [x for x in self.mail if isinstance(x, kind)][-1]

    async def wait_closed(self) -> int:
        await self.until(lambda: self.closed is not None)
        assert self.closed is not None
        return self.closed[0]

    async def ask(self, what: str, text: str = "", offset: int = 0) -> m.Answer:
        """Ask, and raise what a refusal stands for."""
        self._asked += 1
        number = self._asked
        await self.send(m.Ask(number, what, text, offset))

        def answer() -> m.Answer | m.Refusal | None:
            ends = (x for x in self.mail if isinstance(x, m.Answer | m.Refusal) and x.id == number)
            return next(ends, None)

        await self.until(lambda: answer() is not None)
        end = answer()
        assert end is not None
        if isinstance(end, m.Refusal):
            raise from_code(end.code, end.message)
        return end

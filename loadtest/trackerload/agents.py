"""A few thousand agents in one process, towards a tracker: real WebSockets, handshakes and messages.

Run by `loadtest.trackerload.__main__`. What an agent says is what a real one would say, and when; no chunk is
moved: a lease is "read" after a moment, and what was read is with everybody in the swarm a second later.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import time

import aiohttp
import msgspec
import uvloop

import p2pcache
from loadtest.trackerload.storm import Storm
from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.core.settings import SwarmSettings
from p2pcache.errors import RemoteProtocolError, Unreachable
from p2pcache.io.http.connection_limits import raise_file_limit
from p2pcache.io.security.cluster_key import read_cluster_key
from p2pcache.io.tasks import Tasks

ARRIVAL_S = 2.0  # a storm's nodes ask within so long
PAUSE_S = 3.0  # between two storms of the same size
KEPT = 3  # complete models that each agent holds, of ...
MODELS = 40  # ... so many
RACK = 40  # agents behind one address
ASK_EVERY_S = 60.0  # an agent that holds models is asked for one about so often
CONNECTING = 32  # handshakes at once, of one process; the tracker grants 256
JITTER = 0.2  # of heartbeats, as agents have it
PING_S = 5.0  # a tracker that said nothing for so long is pinged, as agents do it
LOOK_S = 0.01  # how often a process looks at its own clock
SWARM_TAG = m.Swarm.__struct_config__.tag


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """What one process is to do; one JSON object on its stdin."""

    url: str
    key_file: str
    first: int  # number of its first agent
    agents: int
    storms: list[int]  # members of each swarm that pulls at any time
    ref: str  # one that can be resolved
    digest: str  # of its manifest
    runs: int  # of each model that is pulled
    reconnects_per_s: float
    hidden: float  # share of the agents that the tracker can't dial
    seed: int


class Answers:
    """How long answers took, by kind; seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.counting = False
        self.sent = 0
        self.received = 0
        self.lost = 0  # connections that broke without being meant to
        self.late: list[float] = []  # by how much our own loop turned late, seconds

    def took(self, kind: str, began: float) -> None:
        """One answer came."""
        if self.counting:
            self.times.setdefault(kind, []).append(time.monotonic() - began)

    async def look(self) -> None:
        """Measure our own lateness, which is in every answer's time and isn't the tracker's."""
        while True:
            due = time.monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            if self.counting:
                self.late.append(max(0.0, time.monotonic() - due))


class Agent:
    """One simulated agent."""

    def __init__(self, number: int, fleet: "Fleet") -> None:
        self.number = number
        self.node = fleet.dice.getrandbits(62)
        self.chosen = False  # for a storm, which it may not have entered yet
        self.storm: Storm | None = None  # the tracker knows that it pulls this
        self.kept = fleet.dice.sample(fleet.models, KEPT)
        self._hidden = fleet.dice.random() < fleet.plan.hidden
        self._fleet = fleet
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._epoch = 0
        self._quiet = True  # nothing came since the last look
        self._waiting: dict[object, tuple[str, float]] = {}  # question -> kind, when
        self._mine = 0  # runs that it read itself
        self._reading: set[int] = set()
        self._next_ask = 0

    async def live(self) -> None:
        """Be a member, again whenever the connection ends."""
        answers = self._fleet.answers
        while True:
            try:
                await self._member()
            except (aiohttp.ClientError, OSError, TimeoutError, RemoteProtocolError, Unreachable):
                answers.lost += 1
                await asyncio.sleep(self._fleet.dice.uniform(0.2, 2))

    async def _member(self) -> None:
        fleet = self._fleet
        async with fleet.door:
            session = fleet.session(self.number // RACK)
            self._socket = None
            socket = await session.ws_connect(
                f"{fleet.plan.url}/v1/member",
                max_msg_size=m.MAX_MESSAGE_BYTES,
                compress=0,
                autoping=False,
            )
            await self._handshake(socket)
            began = time.monotonic()
            await socket.send_bytes(m.encode(self._announcement()))
            settled = m.decode_to_agent(await _binary(socket))
            if not isinstance(settled, m.Settled):
                raise RemoteProtocolError("no Settled")
            fleet.answers.took("announce", began)
        self._socket, self._epoch = socket, settled.epoch
        self._waiting.clear()
        fleet.members += 1
        beats = fleet.tasks.spawn(self._beat(settled.heartbeat_s), name="beat")
        pings = fleet.tasks.spawn(self._ping(socket), name="ping")
        try:
            async for frame in socket:
                self._quiet = False
                if frame.type is aiohttp.WSMsgType.BINARY:
                    fleet.answers.received += 1
                    self._heard(frame.data)
        finally:
            fleet.members -= 1
            beats.cancel()
            pings.cancel()
            await socket.close()

    async def _handshake(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        challenge = msgspec.msgpack.decode(await _binary(socket), type=Challenge)
        secret, nonce = self._fleet.secret, os.urandom(NONCE_BYTES)
        said = hello(secret, challenge, nonce=nonce, node=self.node, role="agent")
        await socket.send_bytes(msgspec.msgpack.encode(said))
        welcome = msgspec.msgpack.decode(await _binary(socket), type=Welcome)
        confirm(secret, challenge, said, welcome)

    # -- what it says ------------------------------------------------------------------------------

    def _announcement(self) -> m.Announce:
        states = [
            m.SwarmState(digest, self._fleet.plan.runs, complete=True) for digest in self.kept
        ]
        if self.storm is not None:
            states.append(self._state(self.storm))
        rack = f"rack-{self.number // RACK}"
        return m.Announce(
            self._address, p2pcache.__version__, rack, "", tuple(states), f"n{self.number}"
        )

    @property
    def _address(self) -> str:
        """One of its own, where its process listens, or nobody does."""
        high, low = divmod(self.number, 256)
        port = 1 if self._hidden else self._fleet.port
        return f"127.{64 + high // 256}.{high % 256}.{low}:{port}"

    def _state(self, storm: Storm) -> m.SwarmState:
        have, runs = storm.have | self._mine, storm.runs
        complete = have == bitset.full(runs)
        read = self._mine.bit_count()
        return m.SwarmState(
            storm.digest, runs, b"" if complete else bitset.to_bytes(have, runs),
            complete=complete, credit=0 if complete else SwarmSettings().origin_fetches,
            leases=tuple(sorted(self._reading)), label="load/model:v1", total_bytes=runs << 22,
            taken=((have.bit_count() - read) << 22, read << 22, 0),
        )  # fmt: skip

    def say(self, message: m.ToTracker) -> None:
        """Send, if there is a connection."""
        socket = self._socket
        if socket is not None and not socket.closed:
            self._fleet.answers.sent += 1
            self._fleet.tasks.spawn_contained(self._send(socket, m.encode(message)), name="say")

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        try:
            await socket.send_bytes(data)
        except (aiohttp.ClientError, OSError):
            await socket.close()

    async def _beat(self, interval_s: float) -> None:
        dice = self._fleet.dice
        await asyncio.sleep(interval_s * dice.uniform(0, 1))
        while True:
            if dice.uniform(0, 1) < interval_s / ASK_EVERY_S:
                self.ask("resolve", self._fleet.plan.ref)
            storm = self.storm
            states = () if storm is None or storm.over else (self._state(storm),)
            self.say(m.Heartbeat(0, states, 1 << 40, 1 << 38))
            await asyncio.sleep(interval_s * dice.uniform(1 - JITTER, 1 + JITTER))

    async def _ping(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """As `announce.TrackerLink` does it: a quiet tracker is asked for a sign of life."""
        await asyncio.sleep(PING_S * self._fleet.dice.uniform(0, 1))
        while not socket.closed:
            if self._quiet:
                with contextlib.suppress(ConnectionError):
                    await socket.ping()
            self._quiet = True
            await asyncio.sleep(PING_S)

    def ask(self, what: str, text: str) -> None:
        """A question whose answer is timed."""
        self._next_ask += 1
        self._waiting[self._next_ask] = what, time.monotonic()
        self.say(m.Ask(self._next_ask, what, text))

    def enter(self, storm: Storm) -> None:
        """Begin to pull: resolve, manifest, then the swarm."""
        self.storm, self._mine = storm, 0
        self._reading.clear()
        self.ask("resolve", self._fleet.plan.ref)
        self.ask("manifest", self._fleet.plan.digest)
        self._waiting[storm.digest] = "enter", time.monotonic()
        self.say(m.Enter(self._state(storm)))

    def finish(self, storm: Storm) -> None:
        """It has all; a little later it is evicted, and others come."""
        self.say(m.Heartbeat(0, (self._state(storm),)))
        self.say(m.Exit(storm.digest))
        self.storm, self.chosen = None, False

    def reconnect(self) -> None:
        """The connection breaks (a restart)."""
        if self._socket is not None:
            self._fleet.tasks.spawn_contained(_closed(self._socket), name="close")

    # -- what it hears -----------------------------------------------------------------------------

    def _heard(self, data: bytes) -> None:
        if (
            data[1] == SWARM_TAG
        ):  # lists are long, and only the first of a swarm is of interest here
            storm = self.storm
            if storm is not None and storm.digest in self._waiting:
                self._answered(storm.digest)
            return
        message = m.decode_to_agent(data)
        match message:
            case m.Answer(number) | m.Refusal(number):
                self._answered(number)
            case m.Grant(digest, _, runs) if self.storm and self.storm.digest == digest:
                for run in runs:
                    self._reading.add(run)
                    wait = self.storm.reading(self._fleet.dice)
                    asyncio.get_running_loop().call_later(wait, self._read, self.storm, run)
            case m.Revoke(_, runs):
                self._reading.difference_update(runs)
            case m.Poll() if self.storm is not None:
                self.say(m.Heartbeat(0, (self._state(self.storm),)))

    def _answered(self, question: object) -> None:
        kind, began = self._waiting.pop(question, ("", 0.0))
        if kind:
            self._fleet.answers.took(kind, began)

    def _read(self, storm: Storm, run: int) -> None:
        if self.storm is storm and run in self._reading:
            self._reading.discard(run)
            self._mine |= 1 << run
            storm.read(run)
            self.say(m.LeaseReport(storm.digest, self._epoch, done=(run,)))


class Fleet:
    """All agents of this process."""

    def __init__(self, plan: Plan, tasks: Tasks) -> None:
        self.plan = plan
        self.tasks = tasks
        self.dice = random.Random(plan.seed)
        shared = random.Random("models")  # the same models in every process
        self.models = [f"{shared.getrandbits(256):064x}" for _ in range(MODELS)]
        self.secret: Secret = read_cluster_key(plan.key_file)
        self.answers = Answers()
        self.members = 0
        self.storms = 0  # that came to their end
        self.port = 0  # where the tracker finds its agents when it dials them back
        self.dialled = 0
        self.door = asyncio.Semaphore(CONNECTING)
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        self.agents = [Agent(plan.first + n, self) for n in range(plan.agents)]

    def session(self, rack: int) -> aiohttp.ClientSession:
        """One that calls from the rack's address."""
        if rack not in self._sessions:
            local = f"127.{10 + rack // 250}.{rack % 250}.1", 0
            connector = aiohttp.TCPConnector(limit=0, local_addr=local)
            self._sessions[rack] = aiohttp.ClientSession(connector=connector)
        return self._sessions[rack]

    async def close(self) -> None:
        """Let go all connections."""
        for session in self._sessions.values():
            await session.close()

    async def listen(self) -> None:
        """Take the tracker's dials, at any number of this machine."""

        async def dialled(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.dialled += self.answers.counting
            writer.close()

        server = await asyncio.start_server(dialled, "0.0.0.0", backlog=1024)
        self.port = server.sockets[0].getsockname()[1]

    def start(self) -> None:
        """Everybody connects; storms begin with `storm`."""
        for agent in self.agents:
            _ = self.tasks.spawn(agent.live(), name="agent")

    async def storm(self, size: int) -> None:
        """One storm after another of `size` agents that are free."""
        while True:
            free = [agent for agent in self.agents if not agent.chosen]
            storm = Storm(self.dice.sample(free, min(size, len(free))), self.plan.runs)
            for agent in storm.members:
                agent.chosen = True
            for agent in storm.members:
                agent.enter(storm)
                await asyncio.sleep(ARRIVAL_S / size)
            while not storm.over:
                await asyncio.sleep(0.2)
            self.storms += 1
            for agent in storm.members:
                agent.finish(storm)
                await asyncio.sleep(PAUSE_S / size)

    async def restarts(self) -> None:
        """Connections that break, one after another."""
        while True:
            await asyncio.sleep(self.dice.expovariate(self.plan.reconnects_per_s))
            self.dice.choice(self.agents).reconnect()

    def figures(self) -> dict[str, object]:
        """What came out."""
        answers = self.answers
        return {
            "members": self.members, "storms": self.storms, "sent": answers.sent,
            "received": answers.received, "lost": answers.lost, "times": answers.times,
            "late": answers.late, "dialled": self.dialled,
        }  # fmt: skip


async def _closed(socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.close()


async def _binary(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    async with asyncio.timeout(20):
        frame = await socket.receive()
    if frame.type is not aiohttp.WSMsgType.BINARY:
        raise Unreachable(f"the tracker closed: {frame.extra}")
    data: bytes = frame.data
    return data


async def _run() -> None:
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with Tasks() as tasks:
        fleet = Fleet(plan, tasks)
        try:
            await fleet.listen()
            fleet.start()
            while fleet.members < len(fleet.agents):
                await asyncio.sleep(0.1)
            for size in plan.storms:
                _ = tasks.spawn(fleet.storm(size), name="storm")
            if plan.reconnects_per_s:
                _ = tasks.spawn(fleet.restarts(), name="restarts")
            _ = tasks.spawn(fleet.answers.look(), name="look")
            print("connected", flush=True)
            await orders.readline()
            fleet.answers.counting = True
            fleet.answers.sent = fleet.answers.received = fleet.answers.lost = fleet.storms = 0
            await orders.readline()
            print(json.dumps(fleet.figures()), flush=True)
            await orders.readline()  # 3,000 goodbyes are of no use: whoever started us kills us now
        finally:
            await fleet.close()


if __name__ == "__main__":
    raise_file_limit()
    gc.disable()  # a look at 3,333 agents takes 0.1 s, and every answer meanwhile would seem that late
    uvloop.run(_run())

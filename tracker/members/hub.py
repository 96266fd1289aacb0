"""Who is connected, and the pump: messages into `Tracking`, what it decides out to the members.

All of it runs on the loop's thread; `Tracking` is touched by nobody else.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from functools import partial
from math import inf

import aiohttp
from aiohttp import web

from p2pcache.core.coordinator.tracker_state import Tracking
from p2pcache.core.leases.origin_integrity import Word
from p2pcache.core.membership.cloned_ids import Twins
from p2pcache.core.membership.dialback import Dial
from p2pcache.core.membership.outputs import (
    DialBack,
    Output,
    ReadRun,
    Send,
    Silent,
    Spoken,
    Unreached,
)
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError, Unreachable
from p2pcache.ids import format_node
from p2pcache.io.clock import Clock
from p2pcache.io.http.connection_limits import trust, turn_out, unknown
from p2pcache.io.security.tls import check_role
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.members.connection import CLOSE_S, Connection, greet, receive
from p2pcache.tracker.members.dialback_dialer import Dialling
from p2pcache.tracker.members.handshake_places import Places
from p2pcache.tracker.members.witness import Witness
from p2pcache.tracker.questions import Asks

_log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0  # docs/protocol.md; the announcement included
LINES_EACH, LINES = Rate(0.1, 3), Rate(1, 20)  # in the log, of an address or node and of all
TWIN_S = (
    60.0  # agents that are refused for their id are told of for so long; they try again within ten
)
MOST_TWINS = 16  # of them, for people
MAX_ASKS = 16  # unanswered questions of one member; agents ask one or two at a time
ROUSED = 32  # connections that send in one turn of the loop, if more were told: some 2 ms
RECENT = 8  # messages whose bytes are kept: between two nodes that enter come a few to others
LEAST_WAIT_S = 0.001  # between two ticks, whatever the deadlines say
LOOK_S = 0.002  # from a deadline to the tick: more than one turn of an idle loop


class Members:
    """Everybody who is connected.

    Invariants: `_live` holds the newest connection of each node, and `Tracking` has heard of
    exactly these; the timer is set for no later than `Tracking.next_wakeup`.
    """

    def __init__(
        self,
        tracking: Tracking,
        *,
        node: int,
        secret: Secret,
        asks: Asks,
        catalog: Catalog,
        tasks: Tasks,
        clock: Clock,
        certified: bool = False,
    ) -> None:
        """`node`: this tracker's own id, for the handshake. `certified`: members show certificates."""
        self.messages: dict[str, int] = {}  # taken in, by kind
        self.refused = 0  # handshakes that failed
        self.ended = 0  # connections of members that are over
        self._tracking = tracking
        self._node = node
        self._secret = secret
        self._asks = asks
        self._tasks = tasks
        self._clock = clock
        self._certified = certified
        self._live: dict[int, Connection] = {}
        self._twins = Twins()
        self._seen_twins: dict[int, tuple[float, str]] = {}  # node -> when, and what to tell people
        self._lines = RateLimit(LINES_EACH, LINES)
        self._warnings = RateLimit(LINES_EACH, LINES)  # strangers mustn't take those of members
        self._places = Places()
        self._dialling = Dialling(self._dialled)
        self._witness = Witness(catalog, self._witnessed)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._recent: deque[tuple[m.ToAgent, bytes]] = deque(maxlen=RECENT)
        self._asleep: deque[Connection] = deque()  # they have something to send, and are to be told
        self._rousing = False  # `_rouse` goes on by itself
        self._closing = False
        self._empty = asyncio.Event()  # set when the last one leaves during `close`

    def __len__(self) -> int:
        return len(self._live)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/member`: one member's connection, from handshake to goodbye."""
        if self._closing:
            raise Unreachable("the tracker is stopping")
        bearer = self._bearer(request)
        socket = web.WebSocketResponse(
            max_msg_size=m.MAX_MESSAGE_BYTES, compress=False, timeout=CLOSE_S
        )
        unknown(request)
        async with self._places.one(str(request.remote), partial(turn_out, request)):
            if self._closing:
                raise Unreachable("the tracker is stopping")
            await socket.prepare(request)
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    node = await greet(socket, self._secret, self._node, bearer)
                    trust(request)
                    first = m.decode_to_tracker(await receive(socket, m.MAX_MESSAGE_BYTES))
                if not isinstance(first, m.Announce):
                    raise RemoteProtocolError("a member's first message is its announcement")
                if not self._twins.admit(node, first.instance):
                    await self._refuse_twin(request, socket, node, first)
                    return socket
            except (TimeoutError, ConnectionError, P2PCacheError) as error:
                await self._refuse(request, socket, error)
                return socket
        await self._member(Connection(node, socket, request, self._clock), first)
        return socket

    def tell(self, node: int, message: m.ToAgent) -> bool:
        """Send a member a message; False: it isn't connected."""
        connection = self._live.get(node)
        if connection is not None:
            connection.put(m.encode(message))
        return connection is not None

    async def close(self) -> None:
        """Say goodbye to everybody; bounded."""
        self._closing = True
        self._dialling.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._live.values():
            connection.close(aiohttp.WSCloseCode.GOING_AWAY, "the tracker is stopping")
        if self._live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._empty.wait()

    # -- one member --------------------------------------------------------------------------------

    def warnings(self) -> list[str]:
        """What an operator should look at: agents that have one id, seen lately."""
        until = self._clock.now() - TWIN_S
        self._seen_twins = {n: seen for n, seen in self._seen_twins.items() if seen[0] > until}
        return [text for _, text in self._seen_twins.values()]

    async def _refuse_twin(
        self, request: web.Request, socket: web.WebSocketResponse, node: int, said: m.Announce
    ) -> None:
        """Two live agents have one id, because a cache or an image was copied: tell them, and people."""
        record = self._tracking.registry.nodes.get(node)
        fit = said.address if not m.unfit_text(said.address) else ""
        other = fit or str(request.remote)
        member = record.member.address if record is not None else "?"
        text = (
            f"two live agents have the same node id {format_node(node)}: the member at {member}, and one at {other} "
            "that is refused; a cache or a machine's image was copied: stop one of them, delete node-id in its cache "
            "dir and start it again"
        )
        self.refused += 1
        self._seen_twins.pop(node, None)
        self._seen_twins[node] = self._clock.now(), text
        if len(self._seen_twins) > MOST_TWINS:
            del self._seen_twins[next(iter(self._seen_twins))]
        _log.log(logging.WARNING if self._has_a_line(node) else logging.DEBUG, "%s", text)
        self.tell(node, m.ClonedId(other))
        await socket.close(code=m.CLONED_ID, message=f"at {member}".encode()[:120])

    def _bearer(self, request: web.Request) -> Member | None:
        """Whom the client's certificate names; None where members need none."""
        if not self._certified:
            return None
        try:
            return check_role(request.get_extra_info("peercert"), "agent")
        except NotAllowed as error:
            self._note_refusal(request, error)
            raise

    async def _refuse(
        self, request: web.Request, socket: web.WebSocketResponse, error: Exception
    ) -> None:
        self._note_refusal(request, error)
        denied = isinstance(error, NotAllowed)
        code = m.NOT_ALLOWED if denied else aiohttp.WSCloseCode.POLICY_VIOLATION
        text = str(error) or "the handshake took too long"
        await socket.close(code=code, message=text.encode()[:120])

    def _note_refusal(self, request: web.Request, error: Exception) -> None:
        """Count it; a line for people as long as strangers don't fill the log with them."""
        self.refused += 1
        level = logging.DEBUG
        if isinstance(error, NotAllowed):
            wait = self._lines.take(str(request.remote), time.monotonic(), patience_s=0)
            level = logging.DEBUG if wait else logging.WARNING
        _log.log(level, "refused a member from %s: %s", request.remote, error)

    async def _member(self, connection: Connection, first: m.Announce) -> None:
        node = connection.node
        before = self._live.get(node)
        if before is not None:
            before.close(aiohttp.WSCloseCode.OK, "a newer connection of this node took over")
        self._live[node] = connection
        name, over = f"member-{format_node(node)}", asyncio.Event()
        self._tasks.spawn_contained(connection.write(), name=name)
        # A task of its own: here each message would wake it through a dozen frames of HTTP handlers.
        self._tasks.spawn_contained(self._listen(connection, first, over), name=name)
        await over.wait()  # when this returns, aiohttp closes in its own words

    async def _listen(self, connection: Connection, first: m.Announce, over: asyncio.Event) -> None:
        node = connection.node
        try:
            self._take(connection, first)
            await connection.read(lambda message: self._take(connection, message))
        except RemoteProtocolError as error:
            level = logging.WARNING if self._has_a_line(node) else logging.DEBUG
            _log.log(level, "dropped member %s: %s", format_node(node), error)
            connection.close(aiohttp.WSCloseCode.POLICY_VIOLATION, str(error))
        finally:
            connection.close(aiohttp.WSCloseCode.OK, "")
            if self._live.get(node) is connection:
                del self._live[node]
                self._twins.left(node)
                self._perform(self._tracking.disconnected(node, self._clock.now()))
            await connection.ended()
            over.set()
            self.ended += 1
            if self._closing and not self._live:
                self._empty.set()

    def _take(self, connection: Connection, message: m.ToTracker) -> bool:
        """Take in a message; False: a newer connection has taken this one's place."""
        if self._live.get(connection.node) is not connection:
            return False
        kind = type(message).__name__
        self.messages[kind] = self.messages.get(kind, 0) + 1
        if isinstance(message, m.Ask):
            self._ask(connection, message)
        elif isinstance(message, m.Warmed):
            self._asks.warming.heard(connection.node, message)
        else:
            now = self._clock.now()
            self._perform(self._tracking.handle(connection.node, message, now))
        return True

    def _ask(self, connection: Connection, ask: m.Ask) -> None:
        known = self._asks.at_once(ask)
        if known is not None:
            connection.put(m.encode(known))
            return
        if connection.asks >= MAX_ASKS:
            refusal = m.Refusal(ask.id, Unreachable.exit_code, "too many questions at once")
            connection.put(m.encode(refusal))
            return
        connection.asks += 1
        self._tasks.spawn_contained(self._answer(connection, ask), name=f"ask-{ask.what[:20]}")

    async def _answer(self, connection: Connection, ask: m.Ask) -> None:
        try:
            connection.put(m.encode(await self._asks.answer(ask)))
        finally:
            connection.asks -= 1

    # -- the pump ----------------------------------------------------------------------------------

    def _perform(self, outputs: list[Output]) -> None:
        last: m.ToAgent | None = None
        for output in outputs:
            if isinstance(output, Unreached):
                self._warn_of(output)
                continue
            if isinstance(output, Spoken):
                self._tell_of(output)
                continue
            if isinstance(output, Silent):
                self._warn_of_silent(output)
                continue
            if isinstance(output, DialBack):
                self._dialling.dial(output.dial)
                continue
            if isinstance(output, ReadRun):
                reading = self._witness.read(output)
                self._tasks.spawn_contained(reading, name=f"witness-{output.digest:.12}")
                continue
            connection = self._live.get(output.node)
            if connection is None:
                continue  # it is reconnecting, and will announce itself
            if not isinstance(output, Send):
                connection.close(aiohttp.WSCloseCode.POLICY_VIOLATION, output.reason)
                continue
            # What many are told may reach most of them a little later; what one waits for may not.
            later = output.message is last and len(outputs) > ROUSED
            last = output.message
            connection.put(self._encoded(last), later=later)
            if later:
                self._asleep.append(connection)
        if self._asleep and not self._rousing:
            self._rouse()
        self._arm()

    def _encoded(self, message: m.ToAgent) -> bytes:
        """A message's bytes: a delta goes to thousands in a row, a list to all who enter for a while."""
        for known, data in self._recent:
            if known is message:
                return data
        data = m.encode(message)
        self._recent.append((message, data))
        return data

    def _rouse(self) -> None:
        """Let some of those send whom a change of a large swarm has given something to say."""
        # All at once they would take the loop for 50 ms where a thousand are told; others ask meanwhile.
        for _ in range(min(ROUSED, len(self._asleep))):
            self._asleep.popleft().rouse()
        self._rousing = bool(self._asleep)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)

    def _warn_of(self, unreached: Unreached) -> None:
        node, digest = unreached.node, unreached.digest
        record = self._tracking.registry.nodes.get(node)
        if record is None or not record.connected:
            return  # it is gone, which is why
        if not self._has_a_line(node):
            self._tracking.dials.untold(node)
            return
        what = f"what it read of {digest:.12} is read again" if digest else "others read storage"
        _log.warning(
            "nobody reaches node %s at %s, so %s: is that port open between the nodes, "
            "and the address its own? (p2pcache doctor there; --advertise)",
            format_node(node), record.member.address, what,
        )  # fmt: skip

    def _tell_of(self, spoken: Spoken) -> None:
        level = logging.WARNING if self._has_a_line(spoken.node) else logging.DEBUG
        who = format_node(spoken.node)
        _log.log(level, "model %.12s, node %s: %s", spoken.digest, who, spoken.text)

    def _witnessed(self, asked: ReadRun, word: Word) -> None:
        if not self._closing:
            self._perform(self._tracking.witnessed(asked, word, self._clock.now()))

    def _warn_of_silent(self, silent: Silent) -> None:
        record = self._tracking.registry.nodes.get(silent.node)
        if record is None or not self._has_a_line(silent.node):
            return
        _log.warning(
            "node %s at %s says that it has %.12s and delivers nothing to those who ask, so storage is read for "
            "them: does its disk hang, or is its uplink full? (its agent's log; p2pcache doctor and p2pcache "
            "bench there)", format_node(silent.node), record.member.address, silent.digest,
        )  # fmt: skip

    def _has_a_line(self, node: int) -> bool:
        """Whether a warning about this member finds room: one that comes and goes, or moves, would fill the log."""
        return not self._warnings.take(format_node(node), time.monotonic(), patience_s=0)

    def _dialled(self, dial: Dial, *, reached: bool) -> None:
        self._perform(self._tracking.dialled(dial, self._clock.now(), reached=reached))

    def _arm(self) -> None:
        wakeup = self._tracking.next_wakeup()
        if wakeup is None or wakeup >= self._timer_at or self._closing:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        wait = max(LEAST_WAIT_S, wakeup - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _look(self) -> None:
        """Take in what lies at the sockets (signs of life, answers of dials), then do what time brings.

        libuv runs its timers first: after a pause of the whole process everybody would seem silent.
        """
        self._timer_at = -inf  # nothing comes sooner
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        self._perform(self._tracking.tick(self._clock.now()))

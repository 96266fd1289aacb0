"""The hub of members: it hands their messages to `TrackerState`, and performs the outputs of `TrackerState`.

It runs on the loop's thread, and no other code changes `TrackerState`.
"""

import asyncio
import contextlib
from collections import deque
from functools import partial
from math import inf

import aiohttp
from aiohttp import web

from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import (
    Close,
    Notice,
    Output,
    ReadRun,
    Send,
)
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.registry import ClonedIds
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.keep_orders import KeptReport
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError, Unreachable
from p2pcache.ids import NodeId, format_node
from p2pcache.io.clock import Clock
from p2pcache.io.http.connection_limits import abort, count_as_idle, trust
from p2pcache.io.security.tls import check_role
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.last_hour.last_hour import LastHour
from p2pcache.tracker.members.connection import CLOSE_S, Connection, greet, receive
from p2pcache.tracker.members.dialback_dialer import DialbackDialer
from p2pcache.tracker.members.handshake_places import HandshakePlaces
from p2pcache.tracker.members.member_log import MemberLog
from p2pcache.tracker.members.witness import Witness
from p2pcache.tracker.questions import Questions

HANDSHAKE_S = 10.0  # docs/protocol.md; the announcement included
MAX_ASKS = 16  # unanswered questions of one member; agents ask one or two at a time
ROUSED = 32  # connections that send in one turn of the loop; more would take the loop for too long
RECENT = 8  # messages whose bytes are kept, because the same message goes to many members
LEAST_WAIT_S = 0.001  # between two ticks, even if a deadline is nearer
LOOK_S = 0.002  # from a deadline to its tick: longer than one turn of an idle loop


class MemberHub:
    """All connected members.

    Invariants: `_live` holds the newest connection of each node, and `TrackerState` counts exactly these nodes as
    connected; the timer is set for no later than `TrackerState.next_wakeup`.
    """

    def __init__(
        self,
        tracking: TrackerState,
        *,
        node: NodeId,
        secret: Secret,
        questions: Questions,
        catalog: Catalog,
        tasks: Tasks,
        clock: Clock,
        last_hour: LastHour,
        certified: bool = False,
    ) -> None:
        """No member yet.

        Args:
            tracking: the coordinator.
            node: this tracker's own id, for the handshake.
            secret: the cluster key.
            questions: answers those of members.
            catalog: reads the origin, for the witness.
            tasks: owner of the tasks of connections.
            clock: of deadlines.
            last_hour: notes what people should know.
            certified: members show certificates.
        """
        self.messages: dict[str, int] = {}  # received, by kind
        self.log = MemberLog(tracking, clock)
        self.ended = 0  # connections of members that have ended
        self._tracking = tracking
        self._node = node
        self._secret = secret
        self._questions = questions
        self._tasks = tasks
        self._clock = clock
        self._last_hour = last_hour
        self._certified = certified
        self._live: dict[NodeId, Connection] = {}
        self._twins = ClonedIds()
        self._places = HandshakePlaces()
        self._dialer = DialbackDialer(self._on_dialled)
        self._witness = Witness(catalog, self._on_reread)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._recent: deque[tuple[m.ToAgent, bytes]] = deque(maxlen=RECENT)
        self._asleep: deque[Connection] = deque()  # their outboxes wait for `_rouse`
        self._rousing = False  # `_rouse` will run again in the next turn of the loop
        self._closing = False
        self._empty = asyncio.Event()  # set when the last member leaves during `close`

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
        count_as_idle(request)
        async with self._places.hold_place(str(request.remote), partial(abort, request)):
            if self._closing:
                raise Unreachable("the tracker is stopping")
            await socket.prepare(request)
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    node = await greet(socket, self._secret, self._node, bearer)
                    trust(request)
                    first = self._announcement(node, await receive(socket, m.MAX_MESSAGE_BYTES))
                if not self._twins.admit(node, first.instance):
                    await self._refuse_twin(request, socket, node, first)
                    return socket
            except (TimeoutError, ConnectionError, P2PCacheError) as error:
                await self._refuse(request, socket, error)
                return socket
        await self._member(Connection(node, socket, request, self._clock, bearer), first)
        return socket

    def send_to(self, node: NodeId, message: m.ToAgent) -> bool:
        """Send a member a message; False: it isn't connected."""
        connection = self._live.get(node)
        if connection is not None:
            connection.queue_message(m.encode(message))
        return connection is not None

    async def close(self) -> None:
        """Say goodbye to all members, within `CLOSE_S`."""
        self._closing = True
        self._dialer.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._live.values():
            connection.close(aiohttp.WSCloseCode.GOING_AWAY, "the tracker is stopping")
        if self._live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._empty.wait()

    # -- one member --------------------------------------------------------------------------------

    def _announcement(self, node: NodeId, data: bytes) -> m.Announce:
        """The first message of a node that has proved itself; people hear of one that makes no sense."""
        try:
            first = m.decode_to_tracker(data)
            if not isinstance(first, m.Announce):
                raise RemoteProtocolError("a member's first message is its announcement")
        except RemoteProtocolError as error:
            self.log.on_dropped(node, error)
            raise
        return first

    async def _refuse_twin(
        self, request: web.Request, socket: web.WebSocketResponse, node: NodeId, said: m.Announce
    ) -> None:
        """Refuse an agent whose node id a live member has; tell both of them, and operators."""
        record = self._tracking.registry.nodes.get(node)
        other = said.address or str(request.remote)
        member = record.member.address if record is not None else "?"
        self.log.on_twin(node, member, other)
        self.send_to(node, m.ClonedId(other))
        await socket.close(code=m.CLONED_ID, message=f"at {member}".encode()[:120])

    def _bearer(self, request: web.Request) -> Member | None:
        """The member that the client's certificate names; None if members show none."""
        if not self._certified:
            return None
        try:
            return check_role(request.get_extra_info("peercert"), "agent")
        except NotAllowed as error:
            self.log.on_refusal(str(request.remote), error)
            raise

    async def _refuse(
        self, request: web.Request, socket: web.WebSocketResponse, error: Exception
    ) -> None:
        self.log.on_refusal(str(request.remote), error)
        denied = isinstance(error, NotAllowed)
        code = m.NOT_ALLOWED if denied else aiohttp.WSCloseCode.POLICY_VIOLATION
        text = str(error) or "the handshake took too long"
        await socket.close(code=code, message=text.encode()[:120])

    async def _member(self, connection: Connection, first: m.Announce) -> None:
        node = connection.node
        before = self._live.get(node)
        if before is not None:
            before.close(aiohttp.WSCloseCode.OK, "a newer connection of this node took over")
        self._live[node] = connection
        name, over = f"member-{format_node(node)}", asyncio.Event()
        self._tasks.spawn_contained(connection.write(), name=name)
        # In a task of its own, so that a message doesn't wake it through a dozen frames of HTTP handlers.
        self._tasks.spawn_contained(self._listen(connection, first, over), name=name)
        await over.wait()  # aiohttp closes the connection when this returns

    async def _listen(self, connection: Connection, first: m.Announce, over: asyncio.Event) -> None:
        node = connection.node
        try:
            self._on_message(connection, first)
            await connection.read_messages(lambda message: self._on_message(connection, message))
        except RemoteProtocolError as error:
            self.log.on_dropped(node, error)
            connection.close(aiohttp.WSCloseCode.POLICY_VIOLATION, str(error))
        finally:
            connection.close(aiohttp.WSCloseCode.OK, "")
            if self._live.get(node) is connection:
                del self._live[node]
                self._twins.on_left(node)
                self._perform(self._tracking.on_disconnected(node, self._clock.now()))
            await connection.wait_ended()
            over.set()
            self.ended += 1
            if self._closing and not self._live:
                self._empty.set()

    def _on_message(self, connection: Connection, message: m.ToTracker) -> bool:
        """Handle a message; False: a newer connection has replaced this one."""
        if self._live.get(connection.node) is not connection:
            return False
        kind = type(message).__name__
        self.messages[kind] = self.messages.get(kind, 0) + 1
        if isinstance(message, m.Ask):
            self._ask(connection, message)
        elif isinstance(message, m.NodeAnswer):
            self._questions.of_nodes.on_told(connection.node, message)
        else:
            now = self._clock.now()
            self._perform(self._tracking.handle(connection.node, message, now))
            if isinstance(message, m.Announce):
                self._questions.keeping.on_connected(connection.node)
            elif isinstance(message, KeptReport):
                self._questions.keeping.on_kept(connection.node, message)
        return True

    def _ask(self, connection: Connection, ask: m.Ask) -> None:
        known = self._questions.at_once(ask)
        if known is not None:
            connection.queue_message(m.encode(known))
            return
        if connection.unanswered >= MAX_ASKS:
            refusal = m.Refusal(ask.id, Unreachable.exit_code, "too many questions at once")
            connection.queue_message(m.encode(refusal))
            return
        connection.unanswered += 1
        self._tasks.spawn_contained(self._answer(connection, ask), name=f"ask-{ask.what[:20]}")

    async def _answer(self, connection: Connection, ask: m.Ask) -> None:
        try:
            answer = await self._questions.answer(ask, connection.bearer)
            connection.queue_message(m.encode(answer))
        finally:
            connection.unanswered -= 1

    # -- outputs -----------------------------------------------------------------------------------

    def _perform(self, outputs: list[Output]) -> None:
        last: m.ToAgent | None = None
        for output in outputs:
            if not isinstance(output, Send):
                self._act(output)
                continue
            connection = self._live.get(output.node)
            if connection is None:
                continue  # it is reconnecting, and will announce itself
            # A message to many may reach most of them a little later. A message to one may not.
            later = output.message is last and len(outputs) > ROUSED
            last = output.message
            connection.queue_message(self._encoded(last), later=later)
            if later:
                self._asleep.append(connection)
        if self._asleep and not self._rousing:
            self._rouse()
        self._arm()

    def _act(self, output: Output) -> None:
        """Perform an output that isn't a message."""
        self._last_hour.hear(output)
        match output:
            case Notice():
                self.log.on_notice(output)
            case Dial():
                self._dialer.dial(output)
            case ReadRun():
                reading = self._witness.reread(output)
                self._tasks.spawn_contained(reading, name=f"witness-{output.digest:.12}")
            case Close():
                if (connection := self._live.get(output.node)) is not None:
                    connection.close(aiohttp.WSCloseCode.POLICY_VIOLATION, output.reason)

    def _encoded(self, message: m.ToAgent) -> bytes:
        """A message's bytes, kept for a while: a delta goes to thousands of members, a list to each newcomer."""
        for known, data in self._recent:
            if known is message:
                return data
        data = m.encode(message)
        self._recent.append((message, data))
        return data

    def _rouse(self) -> None:
        """Let some of the connections send that wait with a message to many."""
        # All at once would hold up the loop, and with it the answers to other members.
        for _ in range(min(ROUSED, len(self._asleep))):
            self._asleep.popleft().rouse()
        self._rousing = bool(self._asleep)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)

    def _on_reread(self, asked: ReadRun, word: WitnessReport) -> None:
        if not self._closing:
            self._perform(self._tracking.on_witness_report(asked, word, self._clock.now()))

    def _on_dialled(self, dial: Dial, *, reached: bool) -> None:
        self._perform(self._tracking.on_dial_ended(dial, self._clock.now(), reached=reached))

    def _arm(self) -> None:
        wakeup = self._tracking.next_wakeup()
        if wakeup >= self._timer_at or self._closing:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        wait = max(LEAST_WAIT_S, wakeup - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _look(self) -> None:
        """Read the sockets first (signs of life, ends of dials), then let the deadlines pass.

        libuv runs timers before sockets, so after a pause of the process every member would seem silent.
        """
        self._timer_at = -inf  # no deadline comes sooner
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        self._perform(self._tracking.tick(self._clock.now()))

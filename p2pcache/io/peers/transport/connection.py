"""One TCP connection between two nodes: its locks, its outbox, and its end.

Thread rules: a thread holds `reading` while it receives and `writing` while it sends. Only the loop's
thread appends control frames. They leave between DATA frames, written by the loop or by the upload
thread that holds `writing`. The last holder of the connection closes the socket, so that no thread
ever uses a reused descriptor.
"""

import asyncio
import contextlib
import itertools
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from p2pcache.core.ratelimit import Rate, RateCounter
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.random_loss import RandomLoss
from p2pcache.errors import P2PCacheError
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.wire import HEADER_BYTES, Frame, Kind, reason
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.channel import Channel
from p2pcache.io.peers.transport.incoming_chunk import ExpectedChunks, IncomingChunk
from p2pcache.io.peers.transport.workers import Inbox


class Owner(Protocol):
    """The loop-side logic of a connection."""

    def handle(self, frame: Frame) -> None:
        """Handle a control frame.

        Raises:
            RemoteProtocolError, NotAllowed: the connection is to be dropped.
        """

    def on_violation(self, error: P2PCacheError) -> None:
        """The peer broke a rule: close, and count it against the peer."""

    def on_closed(self, outcome: Outcome, text: str) -> None:
        """The connection is gone; called once."""


class ParseState:
    """Parse state of a connection's incoming side; used only while `reading` is held."""

    __slots__ = ("body", "data", "frame", "frame_rate", "frames", "head")

    def __init__(self, limits: PeerLimits) -> None:
        self.head = bytearray()  # of a header not yet whole
        self.frame: tuple[int, int, int, int, int, int] | None = (
            None  # header; its payload is in `body`
        )
        self.body = bytearray()
        self.data: IncomingChunk | None = None  # DATA whose payload comes now
        self.frames: list[Frame] = []  # whole control frames for the loop
        self.frame_rate = RateCounter(Rate(limits.frames_per_s, limits.frames_burst))

    @property
    def want(self) -> int:
        """Bytes to read at once: DATA up to the next header, so that slices begin with chunks."""
        return self.data.remaining + HEADER_BYTES if self.data is not None else 64 << 10


_serials = itertools.count(1)

_log = logging.getLogger(__name__)
# The warning is the same for all lines: once in a process is enough.
_told_of_losses = threading.Event()

# The congestion control that goes by round trips and rates, and not by lost packets.
FOR_LOSSES = "bbr"
LOOK_BYTES = 256 << 10  # sent between two looks at a line's losses
FAR_S = 0.0005  # round trip from which a fresh receive buffer (128 KiB) holds less than 2 Gbit/s


class Connection:
    """A channel with an outbox and a parse state."""

    def __init__(
        self,
        channel: Channel,
        loop: asyncio.AbstractEventLoop,
        inbox: Inbox,
        limits: PeerLimits,
        *,
        accepts: frozenset[Kind],
        disarm: Callable[["Connection"], None],
    ) -> None:
        """Take over a channel.

        Args:
            channel: to the peer.
            loop: the loop whose thread owns the connection.
            inbox: the way to that loop.
            limits: what the peer may do.
            accepts: frame types acceptable at first.
            disarm: ends receiving on the connection; called once, under `gate`.
        """
        sock = channel.sock
        sock.settimeout(0.0)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if limits.congestion:
            tcp_info.use_congestion_control(sock, limits.congestion)
        self.channel = channel
        self.sock = sock
        self.fd = sock.fileno()
        self.serial = next(_serials)  # descriptors are reused, serials never
        self.limits = limits
        self.accepts = accepts
        self.owner: Owner | None = None
        self.open = True
        self.uploading = False  # an upload thread sends to this peer, with a deadline of its own
        self.paused = False  # not read for a while because of our download cap
        self.expected: dict[int, ExpectedChunks] = {}  # REQUESTs of ours whose DATA may still come
        self.reading = threading.Lock()
        self.writing = threading.Lock()
        self.gate = threading.Lock()  # between arming for epoll and closing
        self.state = ParseState(limits)
        self.lowat = 1  # SO_RCVLOWAT as set now
        self._far: bool | None = None  # None: not measured yet
        # None: the operator chose a congestion control, or the line was found to lose packets.
        self._losses = None if limits.congestion else RandomLoss()
        self._looked_at = 0  # bytes sent, at the last look for losses
        self.opened_at = time.monotonic()
        self.heard = True  # bytes came since `liveness` looked last
        self.quiet_looks = 0  # of `liveness`, since it last found `heard`
        self.heard_data_at = 0.0  # the last payload
        self.bytes_in = self.bytes_out = 0  # payload; each written by one thread at a time
        self._loop = loop
        self._inbox = inbox
        self._disarm = disarm
        self._holds = 1
        self._outbox: deque[bytes] = deque()
        self._rest = memoryview(
            b""
        )  # of control bytes half sent; belongs to the holder of `writing`
        self._queued = self._sent = 0  # bytes ever; each written by one thread at a time
        self._armed_writer = False

    # -- life ------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the socket from being closed while a thread uses it; False if it is over."""
        with self.gate:
            if not self.open:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """Undo `hold`; the last one closes the socket."""
        with self.gate:
            self._holds -= 1
            last = self._holds == 0
        if not last:
            return
        reception, self.state.data = self.state.data, None
        if reception is not None:
            reception.abandon()
        self.sock.close()

    def close(self, outcome: Outcome, text: str, *, bye: bool = True) -> None:
        """End it now (loop's thread); the second time does nothing.

        Args:
            outcome: how our requests on it end.
            text: why, for the log and for the peer.
            bye: whether to tell the peer.
        """
        with self.gate:
            if not self.open:
                return
            self.open = False
            self._disarm(self)
        if bye:
            self._say_bye(text)
        if self._armed_writer:
            self._loop.remove_writer(self.fd)
            self._armed_writer = False
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.release()
        if self.owner is not None:
            self.owner.on_closed(outcome, text)

    # -- writing ---------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue a control frame (loop's thread); it leaves at once, or after the DATA under way."""
        if not self.open:
            return
        self._outbox.append(frame)
        self._queued += len(frame)
        if self._queued - self._sent > self.limits.outbox_bytes:
            self._inbox.post(self._give_up, "it doesn't read what we send")
            return
        self.flush()

    def flush(self) -> None:
        """Write waiting frames, unless an upload thread holds `writing` (loop's thread)."""
        if not self.open or not self.writing.acquire(blocking=False):
            return
        try:
            drained = self._write()
        except OSError as error:
            self._inbox.post(self._give_up, str(error))
            return
        finally:
            self.writing.release()
        if not drained and not self._armed_writer:
            self._armed_writer = True
            self._loop.add_writer(self.fd, self._writable)

    @property
    def rtt_s(self) -> float:
        """Least recent round-trip time as the kernel measured it, in seconds; 0: not known."""
        return tcp_info.min_rtt_s(self.sock)

    @property
    def far(self) -> bool:
        """Whether the round trip is long enough that the kernel must grow its buffers; measured once."""
        if self._far is None:
            self._far = self.rtt_s >= FAR_S
        return self._far

    @property
    def backlog(self) -> bool:
        """Whether control frames wait."""
        return self._queued != self._sent

    def drain(self) -> None:
        """Write all waiting frames, blocking (upload threads, holding `writing`).

        Raises:
            TimeoutError: no progress for `stall_s`.
            OSError: the connection broke.
        """
        while not self._write():
            self.wait_writable()

    def wait_writable(self) -> None:
        """Block until the socket takes bytes (upload threads).

        Raises:
            TimeoutError: not within `stall_s`.
        """
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if not poll.poll(self.limits.stall_s * 1000):
            raise TimeoutError("the peer doesn't read")

    def wait_sent(self) -> None:
        """Block until next to nothing waits in the send buffer (upload threads, without `writing`).

        `sendfile` returns when the bytes lie in the buffer. Ended then, an upload would free its slot too
        early: a crowded node would look idle, and never answer BUSY (docs/design/05-data-plane.md).

        Raises:
            TimeoutError: nothing left it for `stall_s`.
            OSError: the connection broke.
        """
        tcp_info.wait_sent(self.sock, self.limits.stall_s)

    def mind_losses(self) -> None:
        """Change the congestion control once a long line loses packets without being full (upload threads)."""
        if self._losses is None or self.bytes_out - self._looked_at < LOOK_BYTES:
            return
        self._looked_at = self.bytes_out
        if not self._losses.is_lossy(tcp_info.loss_sample(self.sock)):
            return
        self._losses = None
        if tcp_info.use_congestion_control(self.sock, FOR_LOSSES):
            _log.info("the line to a peer loses packets: %s goes on with it", FOR_LOSSES)
        elif not _told_of_losses.is_set():
            _told_of_losses.set()
            _log.warning(
                "the line to a peer loses packets, and TCP takes it for a full one; with %s it would be quicker: %s",
                FOR_LOSSES, tcp_info.TO_ALLOW,
            )  # fmt: skip

    def _write(self) -> bool:
        while self._rest or self._outbox:
            if not self._rest:
                waiting = [self._outbox.popleft() for _ in range(len(self._outbox))]
                self._rest = memoryview(b"".join(waiting))
            try:
                sent = self.channel.send(self._rest)
            except BlockingIOError:
                return False
            self._rest = self._rest[sent:]
            self._sent += sent
        return self.channel.flush()

    def _writable(self) -> None:
        self._loop.remove_writer(self.fd)
        self._armed_writer = False
        self.flush()

    def _say_bye(self, text: str) -> None:
        if not self.writing.acquire(blocking=False):
            return  # inside a DATA frame: nothing may be said there
        try:
            if self._write():
                self.channel.send(reason(Kind.BYE, text))
        except OSError:
            return
        finally:
            self.writing.release()

    def _give_up(self, text: str) -> None:
        self.close(Outcome.LOST, text, bye=False)

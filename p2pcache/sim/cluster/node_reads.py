"""The reads of a simulated node from the origin: begun, frozen, cancelled and ended as in the daemon's threads."""

from p2pcache.core.swarm import events
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import RunIndex
from p2pcache.sim.cluster.network import Flow, Link
from p2pcache.sim.cluster.node_state import NodeState

STALL_S = 10.0  # a request ends after this time without bytes, as in the data plane
# A read begins again after this time without bytes, as in the origin's client.
READ_TIMEOUT_S = 10.0


# Storage has sent so much more of a read than has arrived: it lies in queues and in buffers of sockets.
SENT_AHEAD_BYTES = 256 * 1024


class Read:
    """One read in flight."""

    __slots__ = ("begun", "behind", "cancelled", "flow", "flows_since", "frozen", "run", "stream")

    def __init__(self, run: RunIndex, stream: Link | None) -> None:
        self.run = run
        # The link of its request's connection; None: connections aren't limited.
        self.stream = stream
        self.begun = False  # False: a read before it in its request hasn't ended
        self.behind = 0  # number of the read whose bytes follow in its request; 0: none
        self.flow: Flow | None = None  # None: the origin hasn't answered yet, or is frozen
        self.flows_since = 0.0  # when the first bytes of its request came
        self.frozen = False
        self.cancelled = False


class OriginReads:
    """The reads of one node."""

    def __init__(self, node: NodeState) -> None:
        self.odd = False  # this node reads other storage than the others
        self._node = node
        self._reads: dict[int, Read] = {}
        self._idle: list[Link] = []  # limited connections without a request

    def __len__(self) -> int:
        return len(self._reads)

    def begin(self, fetch: int, run: RunIndex, *, joined: bool) -> None:
        """Ask the origin for a run; `joined`: in one request with the read before it."""
        if joined:
            before = self._reads[fetch - 1]
            before.behind = fetch
            self._reads[fetch] = Read(run, before.stream)
        else:
            self._reads[fetch] = Read(run, self._connect())
            self._ask(fetch)

    def cancel_read(self, fetch: int) -> None:
        """The run isn't needed any more. A thread that waits for bytes notices it only at its timeout."""
        read = self._reads.get(fetch)
        if read is None:
            return
        read.cancelled = True
        if not read.begun:
            return
        if read.flow is not None:
            left = self._node.net.end_flow(read.flow)
            self._node.env.sent_in_vain += min(left, SENT_AHEAD_BYTES)
        if not read.frozen:
            self._node.world.after(0, self._ended, fetch, Outcome.CANCELLED)

    def freeze(self) -> int:
        """Reads that flow now get no more bytes; returns how many they are."""
        flowing = [(n, r) for n, r in self._reads.items() if r.flow is not None and not r.cancelled]
        for fetch, read in flowing:
            assert read.flow is not None
            self._node.net.end_flow(read.flow)
            self._hang(fetch, read)
        return len(flowing)

    def stop(self) -> None:
        """The process is gone."""
        for read in self._reads.values():
            if read.flow is not None:
                self._node.net.end_flow(read.flow)

    def _ask(self, fetch: int) -> None:
        node = self._node
        self._reads[fetch].begun = True
        env = node.env
        queued_s = sum(env.queued_s(link) for link in (node.up, env.origin, node.down))
        node.world.after(env.first_byte_s() + queued_s, self._answers, fetch)

    def _answers(self, fetch: int) -> None:
        node, read = self._node, self._reads.get(fetch)
        if not node.alive or read is None or read.cancelled:
            return
        if node.env.refusing_until > node.world.now:
            self._ended(fetch, Outcome.UNAVAILABLE)
        elif self.odd:
            self._ended(fetch, Outcome.MISMATCH)
        elif node.env.frozen_until > node.world.now:
            self._hang(fetch, read)
        else:
            read.flows_since = node.world.now
            self._flow(fetch, read)

    def _flow(self, fetch: int, read: Read) -> None:
        node = self._node
        stream = [] if read.stream is None else [read.stream]
        path = [node.env.origin, *stream, *node.links_in]
        size = node.run_bytes[read.run]
        flowing = any(one.flow is not None for one in self._reads.values() if one is not read)
        weight = node.env.further_share if flowing else 1.0
        read.flow = node.net.start(path, size, self._ended, fetch, Outcome.DONE, weight=weight)

    def _hang(self, fetch: int, read: Read) -> None:
        read.flow, read.frozen = None, True
        self._node.world.after(READ_TIMEOUT_S, self._timed_out, fetch)

    def _timed_out(self, fetch: int) -> None:
        if not self._node.alive:
            return
        read = self._reads[fetch]
        read.frozen = False
        if read.cancelled:
            self._ended(fetch, Outcome.CANCELLED)
        else:
            self._ask(fetch)

    def _connect(self) -> Link | None:
        """The link of a connection to the origin, if connections are limited."""
        if self._idle:
            return self._idle.pop()
        rate = self._node.env.origin_stream
        return self._node.net.link(rate) if rate else None

    def _ended(self, fetch: int, outcome: Outcome) -> None:
        read = self._reads.pop(fetch, None)
        if read is not None:
            flow_s = 0.0
            if outcome is Outcome.DONE:
                flow_s = self._node.world.now - read.flows_since
                self._node.progressed()
            self._node.post(events.FetchEnded(fetch, outcome, flow_s))
            if read.behind:
                self._go_on(read, outcome)
            elif read.stream is not None:
                self._idle.append(read.stream)

    def _go_on(self, before: Read, outcome: Outcome) -> None:
        """The next read of a request, now that the one before it has ended."""
        fetch = before.behind
        read = self._reads[fetch]
        read.begun = True
        if read.cancelled:
            self._ended(fetch, Outcome.CANCELLED)
        elif outcome is Outcome.UNAVAILABLE:
            self._ended(fetch, outcome)
        elif outcome is Outcome.DONE and self._node.alive:
            read.flows_since = before.flows_since
            self._flow(fetch, read)
        else:
            self._ask(fetch)

"""The download of one model as its clients see it: the runs that they want, its progress, its end."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.core.host.pull_timeline import Timeline
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.core.swarm.events import Source
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import P2PCacheError, without_frames
from p2pcache.ids import Ref, RunSet

RATE_WINDOW_S = 5.0  # the rate in progress events is the mean over this window


Sources = dict[str, int]
"""Bytes by where they came from: `bytes_origin`, `bytes_peers`, `bytes_local`."""


def action_of(priority: Priority) -> str:
    """The action of a download in the history."""
    return "warm" if priority is Priority.WARM else "pull"


class Download:
    """The download of one model. Any number of clients wait for it; it ends once, for all of them."""

    def __init__(
        self, ref: Ref, swarm: SwarmDriver, timeline: Timeline, started: float, started_unix: float, *,
        whole: bool, kept: bool = False,
    ) -> None:  # fmt: skip
        self.swarm = swarm
        self._name = ref
        self._clients: Counter[Ref] = Counter()  # those that wait, by their name of the model
        self.timeline = timeline
        self.noted = False  # it is in the history
        self.priority = (
            Priority.USUAL
        )  # the earliest of its clients; it also holds in the queues of peers
        self.whole = whole  # a client wants all of it
        self._kept = kept  # the tracker ordered it
        self._wishes: dict[str, RunSet] = {}  # by loader, if no client wants all of it
        self._urgent: RunSet = 0  # runs that loaders waited for before the scheduler started
        self.started = started  # monotonic
        self.started_unix = started_unix
        self.bytes_before = swarm.bytes_done
        self._traffic_before = dict(swarm.traffic)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples: list[tuple[float, int]] = []

    @property
    def clients(self) -> int:
        """How many clients wait for it."""
        return self._clients.total()

    def clients_named(self, ref: Ref) -> int:
        """How many of them call it so."""
        return self._clients[ref]

    @property
    def refs(self) -> list[Ref]:
        """The names under which clients wait for it; of one that nobody waits for, the last one."""
        return list(self._clients) or [self._name]

    @property
    def ref(self) -> Ref:
        """The first of `refs`."""
        return self.refs[0]

    @contextlib.contextmanager
    def client(self, ref: Ref) -> Iterator[None]:
        """Inside the block a client waits for it, under this name. Names may be of several namespaces."""
        self._clients[ref] += 1
        try:
            yield
        finally:
            self._clients[ref] -= 1
            if not self._clients[ref]:
                del self._clients[ref]
                self._name = ref

    @property
    def bytes_total(self) -> int:
        """Distinct bytes of the model."""
        return self.swarm.layout.total_bytes

    @property
    def wanted(self) -> RunSet:
        """Runs that a client wants."""
        union: RunSet = 0
        for runs in self._wishes.values():
            union |= runs
        return c.ALL if self.whole else union

    def wish(self, client: str, runs: RunSet) -> None:
        """A client needs these runs, beside those that it named before."""
        before = self._wishes.get(client, 0)
        if runs & ~before:
            self._wishes[client] = before | runs
            self._tell_wanted()

    def forget_wish(self, client: str) -> None:
        """A client has left, so the runs that it named count no more."""
        if self._wishes.pop(client, 0):
            self._tell_wanted()

    def on_urgent(self, runs: RunSet) -> None:
        """A loader waits for these runs now."""
        if self.swarm.scheduler is None:
            self._urgent |= runs
        self.swarm.post(e.Urgent(runs))

    def start(self) -> None:
        """Ask for the wanted runs, those that loaders wait for first."""
        self.swarm.start(self.wanted)
        if self._urgent:
            self.swarm.post(e.Urgent(self._urgent))

    def want_whole(self) -> None:
        """A client wants all of it from now on."""
        self.whole = True
        self.swarm.post(e.Wanted(c.ALL))

    def _tell_wanted(self) -> None:
        if not self.whole:
            self.swarm.post(e.Wanted(self.wanted))

    def fail(self, error: P2PCacheError) -> None:
        """End it with an error, unless it has ended."""
        if not self.ended.done():
            self.ended.set_exception(without_frames(error))
            self.ended.exception()  # asyncio logs an exception that nobody has asked for

    def succeed(self) -> None:
        """End it well, unless it has ended."""
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def error(self) -> P2PCacheError | None:
        """Why it failed; None: it didn't, or hasn't ended."""
        error = self.ended.exception() if self.ended.done() else None
        return error if isinstance(error, P2PCacheError) else None

    def sources(self, before: Sources | None = None) -> Sources:
        """Bytes that this download received, by source; without those `before`."""
        first, now = self._traffic_before, self.swarm.traffic
        named = {
            "bytes_origin": Source.ORIGIN, "bytes_peers": Source.PEER, "bytes_local": Source.LOCAL,
        }  # fmt: skip
        gone = before or {}
        return {name: now[s] - first[s] - gone.get(name, 0) for name, s in named.items()}

    def sources_before(self, called: float) -> Sources:
        """What had come when a client joined that called at this time (monotonic); nothing if it called first."""
        return {} if self.started >= called else self.sources()

    def report(self, now: float) -> dict[str, object]:
        """Where the time goes or went, in the form of docs/api.md."""
        return {
            "bytes": self.bytes_total, "bytes_had": self.bytes_before, **self.sources(),
            **self.timeline.report(now),
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """Its kind in `p2pcache ps`: pull, warm, keep or background."""
        return (
            "background"
            if self.action == "pull" and self.priority is Priority.BACKGROUND
            else self.action
        )

    @property
    def action(self) -> str:
        """Its action in the history."""
        return (
            "keep"
            if self._kept and self.priority is Priority.BACKGROUND
            else action_of(self.priority)
        )

    def progress(self, now: float) -> dict[str, object]:
        """The fields of a progress event, as in docs/api.md."""
        return {
            "bytes_done": self.swarm.bytes_done, "bytes_total": self.bytes_total, **self.sources(),
            "peers": self.swarm.peer_count, "rate": round(self.rate(now)),
        }  # fmt: skip

    def rate(self, now: float) -> float:
        """Bytes per second over the last few seconds."""
        done = self.swarm.bytes_done
        self._samples.append((now, done))
        while len(self._samples) > 1 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.pop(0)
        begin, had = self._samples[0]
        if now - begin < 0.2:
            return (done - self.bytes_before) / max(0.2, now - self.started)
        return (done - had) / (now - begin)

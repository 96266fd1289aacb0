"""The fetch of one model, as its clients see it: what is wanted, how far it is, how it ends."""

import asyncio

from p2pcache.agent.downloads.driver import Swarm
from p2pcache.core.host.pull_timeline import Timeline
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.core.swarm.events import Source
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import P2PCacheError, without_frames
from p2pcache.ids import Ref

RATE_WINDOW_S = 5.0  # the rate that progress shows is a mean over so long


def action_of(turn: Priority) -> str:
    """What the history calls a fetch."""
    return "warm" if turn is Priority.WARM else "pull"


class Download:
    """The fetch of one model. Any number of clients wait for it; it ends once, for all of them."""

    def __init__(
        self, ref: Ref, swarm: Swarm, timeline: Timeline, started: float, started_unix: float, *,
        whole: bool,
    ) -> None:  # fmt: skip
        self.ref = ref
        self.swarm = swarm
        self.timeline = timeline
        self.noted = False  # in the history
        self.turn = Priority.USUAL  # the earliest of its clients', here and at its peers
        self.whole = whole  # somebody wants all of it
        self._wishes: dict[str, int] = {}  # else: what each loader needs (bits over runs)
        self._urgent = 0  # what loaders waited for before the swarm was asked for anything
        self.started = started  # monotonic
        self.started_unix = started_unix
        self.clients = 0
        self.bytes_before = swarm.bytes_done
        self._traffic_before = dict(swarm.traffic)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples: list[tuple[float, int]] = []

    @property
    def bytes_total(self) -> int:
        """Distinct bytes of the model."""
        return self.swarm.layout.total_bytes

    @property
    def wanted(self) -> int:
        """Runs that somebody wants (bits)."""
        union = 0
        for runs in self._wishes.values():
            union |= runs
        return c.ALL if self.whole else union

    def wish(self, who: str, runs: int) -> None:
        """A loader needs these runs, too."""
        before = self._wishes.get(who, 0)
        if runs & ~before:
            self._wishes[who] = before | runs
            self._tell_wanted()

    def forget_wish(self, who: str) -> None:
        """A loader has left."""
        if self._wishes.pop(who, 0):
            self._tell_wanted()

    def demand(self, runs: int) -> None:
        """A loader waits for these runs (bits)."""
        if self.swarm.scheduler is None:
            self._urgent |= runs
        self.swarm.post(e.Urgent(runs))

    def start(self) -> None:
        """Ask for what is wanted, what loaders wait for first."""
        self.swarm.start(self.wanted)
        if self._urgent:
            self.swarm.post(e.Urgent(self._urgent))

    def want_whole(self) -> None:
        """Somebody wants all of it now."""
        self.whole = True
        self.swarm.post(e.Wanted(c.ALL))

    def _tell_wanted(self) -> None:
        if not self.whole:
            self.swarm.post(e.Wanted(self.wanted))

    def fail(self, error: P2PCacheError) -> None:
        """End it badly, once."""
        if not self.ended.done():
            self.ended.set_exception(without_frames(error))
            self.ended.exception()  # heard, even when no client is left

    def finish(self) -> None:
        """End it well, once."""
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def error(self) -> P2PCacheError | None:
        """What it ended with; None: well, or not yet."""
        error = self.ended.exception() if self.ended.done() else None
        return error if isinstance(error, P2PCacheError) else None

    def sources(self) -> dict[str, int]:
        """Bytes that this fetch took, by source."""
        before, now = self._traffic_before, self.swarm.traffic
        return {
            "bytes_origin": now[Source.ORIGIN] - before[Source.ORIGIN],
            "bytes_peers": now[Source.PEER] - before[Source.PEER],
            "bytes_local": now[Source.LOCAL] - before[Source.LOCAL],
        }

    def report(self, now: float) -> dict[str, object]:
        """Where the time goes or went, as docs/api.md has it."""
        return {"bytes": self.bytes_total, **self.sources(), **self.timeline.report(now)}

    @property
    def kind(self) -> str:
        """What `ps` calls it: pull, warm or background."""
        return "background" if self.turn is Priority.BACKGROUND else action_of(self.turn)

    def progress(self, now: float) -> dict[str, object]:
        """How far it is, as docs/api.md has it."""
        return {
            "bytes_done": self.swarm.bytes_done, "bytes_total": self.bytes_total, **self.sources(),
            "peers": self.swarm.peer_count, "rate": round(self.rate(now)),
        }  # fmt: skip

    def rate(self, now: float) -> float:
        """Bytes per second over the last few seconds."""
        done = self.swarm.bytes_done
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.pop(0)
        begin, had = self._samples[0]
        if now - begin < 0.2:
            return (done - self.bytes_before) / max(0.2, now - self.started)
        return (done - had) / (now - begin)

"""Where the time of one pull went: its phases, and what it waited for.

All times are seconds of one clock.
"""

from collections import Counter, deque

from p2pcache.core.host.settings import LEAST_S, PEAK_S, SHORTEST_S, TAIL_SHARE, TOP_PEERS
from p2pcache.core.swarm.events import Source
from p2pcache.ids import NodeId

PHASES = {
    "resolve": "what the name means now",
    "manifest": "the manifest, and space for the model",
    "local": "chunks that other models of this cache have",
    "first_byte": "until the first chunk had come and was proved",
    "swarm": "the bulk of the bytes",
    "tail": "the last twentieth of the bytes",
    "flush": "making the last bytes durable",
    "publish": "showing the model's directory",
}
"""The phases in their order: together they are the critical path."""


class Timeline:
    """When each phase of a pull ended, and how many bytes came from each peer."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._ends: dict[str, float] = {}
        self._expected = 0
        self._taken = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_bytes = 0
        self._peak = 0
        self._peers: Counter[NodeId] = Counter()
        self._waited: Counter[str] = Counter()

    def reached(self, phase: str, now: float) -> None:
        """A phase has ended; the first call for a phase counts."""
        assert phase in PHASES
        self._ends.setdefault(phase, now)

    def expect(self, nbytes: int) -> None:
        """`nbytes` have to come over the network."""
        self._expected = nbytes

    def took(self, source: Source, nbytes: int, now: float, node: NodeId = 0) -> None:
        """Proved bytes came in; `node`: the peer, if they came from one."""
        if source is Source.LOCAL or not nbytes:
            return
        self.reached("first_byte", now)
        if source is Source.PEER:
            self._peers[node] += nbytes
        self._taken += nbytes
        self._recent.append((now, nbytes))
        self._recent_bytes += nbytes
        while self._recent[0][0] <= now - PEAK_S:
            self._recent_bytes -= self._recent.popleft()[1]
        self._peak = max(self._peak, self._recent_bytes)
        if self._taken >= TAIL_SHARE * self._expected:
            self.reached("swarm", now)

    def finished(self, now: float) -> None:
        """The last wanted byte is here."""
        if self._taken:
            self.reached("swarm", now)  # fewer bytes than expected were needed, so there is no tail
            self.reached("tail", now)

    def waited(self, what: str, seconds: float) -> None:
        """The pull waited for a cause, a key of `snapshot.WAITS`; "": none."""
        if what:
            self._waited[what] += seconds  # type: ignore[assignment] # Counters count seconds as well

    def report(self, now: float) -> dict[str, object]:
        """The report of docs/api.md; if the pull still runs, up to `now`."""
        phases = self._phases(now)
        end = self.began + sum(seconds for _, seconds in phases)
        fetched_s = sum(s for name, s in phases if name in ("first_byte", "swarm", "tail"))
        peak = self._peak / PEAK_S
        known = fetched_s >= LEAST_S and peak > 0
        return {
            "seconds": round(end - self.began, 3),
            "phases": [{"phase": name, "seconds": round(s, 3)} for name, s in phases],
            "longest": max(phases, key=lambda phase: phase[1])[0] if phases else "",
            "waited": {what: round(s, 2) for what, s in self._waited.most_common()},
            "rate": round(self._taken / fetched_s) if fetched_s >= SHORTEST_S else 0,
            "peak_rate": round(peak) if known else 0,
            "eta_node": round(min(1.0, self._taken / peak / fetched_s), 3) if known else None,
            "peers": [
                {"node": f"{node:016x}", "bytes": nbytes}
                for node, nbytes in self._peers.most_common(TOP_PEERS)
            ],
            "peers_count": len(self._peers),
        }

    def _phases(self, now: float) -> list[tuple[str, float]]:
        """(phase, seconds), up to the phase that hasn't ended."""
        found, at = [], self.began
        last = max((list(PHASES).index(name) for name in self._ends), default=-1)
        for number, name in enumerate(PHASES):
            end = self._ends.get(name)
            if end is None and number < last:
                continue  # the phase had nothing to do
            found.append((name, max(0.0, (now if end is None else end) - at)))
            if end is None:
                break
            at = max(at, end)
        return found

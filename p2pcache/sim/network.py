"""Links and flows: bytes as a fluid, shared fairly.

Every flow crosses one uplink and one downlink. Rates are solved once per quantum by progressive
filling (near max-min fair, as TCP flows on shaped links come out), and between two quanta a new
flow gets what its links have to spare. Ends of flows are exact in time for the rates as solved.
"""

from collections.abc import Callable
from typing import Any

from p2pcache.sim.world import World

_ROUNDS = 4  # of filling: what is left over after four is under a hundredth
_LEFTOVER = 0.01  # share of a link that isn't worth another round


class Link:
    """One direction of one host's network card, or the origin's uplink."""

    __slots__ = ("carried", "count", "rate", "share", "side", "spare")

    def __init__(self, rate: float) -> None:
        self.side = 0  # of a partition; flows between two sides stand still; 0: reaches both
        self.rate = rate  # bytes per second
        self.spare = rate  # not used by the flows as solved last
        self.count = 0  # scratch of the solver
        self.share = 0.0  # scratch of the solver
        self.carried = 0.0  # bytes so far


class Flow:
    """Bytes on their way."""

    __slots__ = ("args", "at", "down", "left", "on_done", "rate", "up")

    def __init__(
        self, up: Link, down: Link, size: float, on_done: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.up = up
        self.down = down
        self.left = size  # bytes, at time `at`
        self.at = 0.0
        self.rate = 0.0
        self.on_done: Callable[..., None] | None = on_done
        self.args = args

    @property
    def frozen(self) -> bool:
        """A partition lies between its ends."""
        return self.up.side * self.down.side != 0 and self.up.side != self.down.side


class Network:
    """All flows."""

    def __init__(self, world: World, quantum_s: float) -> None:
        self._world = world
        self._quantum_s = quantum_s
        self._flows: dict[Flow, None] = {}  # in order of start
        self._solve_at = -1.0  # when the next solution is scheduled for

    def start(
        self, up: Link, down: Link, size: float, on_done: Callable[..., None], *args: Any
    ) -> Flow:
        """Send bytes; `on_done(*args)` is called when the last one leaves."""
        world = self._world
        flow = Flow(up, down, size, on_done, args)
        flow.at = world.now
        self._flows[flow] = None
        rate = 0.0 if flow.frozen else min(up.spare, down.spare)
        if rate > _LEFTOVER * up.rate:
            self._give(flow, rate)
            self._foresee(flow)
        if self._solve_at < world.now:
            self._solve_at = world.now + (0.0 if len(self._flows) == 1 else self._quantum_s)
            world.at(self._solve_at, self._tick)
        return flow

    def cancel(self, flow: Flow) -> None:
        """Stop a flow; what was sent was sent."""
        if flow.on_done is not None:
            self._settle(flow)
            self._remove(flow)

    def rewired(self) -> None:
        """Links changed their rate or side."""
        self._solve()

    def _give(self, flow: Flow, rate: float) -> None:
        flow.rate += rate
        flow.up.spare -= rate
        flow.down.spare -= rate

    def _settle(self, flow: Flow) -> None:
        """Book what has flowed since the last look."""
        sent = min(flow.left, flow.rate * (self._world.now - flow.at))
        flow.left -= sent
        flow.at = self._world.now
        flow.up.carried += sent
        flow.down.carried += sent

    def _remove(self, flow: Flow) -> None:
        flow.on_done = None
        del self._flows[flow]
        flow.up.spare += flow.rate
        flow.down.spare += flow.rate
        flow.rate = 0.0

    def _foresee(self, flow: Flow) -> None:
        """Schedule its end if it comes before the next solution."""
        if flow.left <= flow.rate * self._quantum_s * 1.001:
            self._world.after(flow.left / flow.rate, self._maybe_done, flow)

    def _maybe_done(self, flow: Flow) -> None:
        if flow.on_done is None or flow.rate <= 0:
            return
        self._settle(flow)
        if flow.left > flow.rate * 1e-9 + 1e-6:
            return  # slower by now: foreseen again at the next solution
        on_done = flow.on_done
        self._remove(flow)
        on_done(*flow.args)

    def _tick(self) -> None:
        self._solve()
        if self._flows:
            self._solve_at = self._world.now + self._quantum_s
            self._world.at(self._solve_at, self._tick)

    def _solve(self) -> None:
        now = self._world.now
        for flow in self._flows:  # as `_settle`, written out: this is the simulator's hottest loop
            up, down = flow.up, flow.down
            sent = flow.rate * (now - flow.at)
            if sent > flow.left:
                sent = flow.left
            flow.left -= sent
            flow.at = now
            flow.rate = 0.0
            up.carried += sent
            down.carried += sent
            up.spare = up.rate
            down.spare = down.rate
        open_ = [flow for flow in self._flows if not flow.frozen]
        for _ in range(_ROUNDS):
            if not open_:
                break
            open_ = _fill(open_)
        soon = self._quantum_s * 1.001
        for flow in self._flows:
            if flow.left <= flow.rate * soon and flow.rate > 0:
                self._foresee(flow)


def _fill(flows: list[Flow]) -> list[Flow]:
    """Give each flow an even share of what its links have left; returns those that can grow on."""
    for flow in flows:
        flow.up.count = flow.down.count = 0
    for flow in flows:
        flow.up.count += 1
        flow.down.count += 1
    for flow in flows:
        flow.up.share = flow.up.spare / flow.up.count
        flow.down.share = flow.down.spare / flow.down.count
    for flow in flows:
        up, down = flow.up, flow.down
        rate = min(down.share, up.share)
        flow.rate += rate
        up.spare -= rate
        down.spare -= rate
    return [
        flow
        for flow in flows
        if flow.up.spare > _LEFTOVER * flow.up.rate and flow.down.spare > _LEFTOVER * flow.down.rate
    ]

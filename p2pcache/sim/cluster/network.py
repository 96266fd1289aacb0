"""Links and flows: bytes as a fluid, shared fairly.

A flow crosses a path of links: one node's uplink, another node's downlink, and between them the disks and rack uplinks
of the scenario. Once per quantum all rates are solved by progressive filling (Bertsekas and Gallager 1992), which comes
near max-min fairness, as TCP flows on shaped links do; a flow with twice the weight of another gets twice as much of a
link that both cross. Between two solutions a new flow gets the spare rate
of its links, and the rate of an ended flow is unused until the next solution, as TCP needs some round trips to take it.
The ends of flows are exact in time for the solved rates.

Flows and links are rows of arrays: a storm of 10,000 nodes has 100,000 flows at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from p2pcache.sim.cluster.world import World

_ROUNDS = 6  # of filling: after them less than a hundredth of a link is unused
_LEFTOVER = 0.01  # unused share of a link that isn't worth another round
_FIRST_ROWS = 256
_NOWHERE = 0  # the link that pads short paths: its rate is infinite

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Link:
    """One direction of one host's network card, a disk, or the uplink of an origin or a rack."""

    __slots__ = ("_net", "number")

    def __init__(self, net: "Network", number: int) -> None:
        self._net = net
        self.number = number  # its row

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return float(self._net.rates[self.number])

    @property
    def spare(self) -> float:
        """Unused rate in bytes per second, as of the last solution or change."""
        return float(self._net.spare(self.number))

    @property
    def carried(self) -> float:
        """Bytes carried so far, as of the last solution or end of a flow."""
        return float(self._net.carried[self.number])

    @property
    def side(self) -> int:
        """The side of a partition. Flows between two sides stand still. 0: the link reaches both."""
        return int(self._net.sides[self.number])

    @side.setter
    def side(self, side: int) -> None:
        self._net.sides[self.number] = side


class Flow:
    """One transfer of bytes along a path."""

    __slots__ = ("args", "links", "on_done", "row")

    def __init__(
        self, row: int, links: list[int], on_done: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.row = row  # -1 when it is over
        self.links = links
        self.on_done = on_done
        self.args = args


class Network:
    """All links and flows.

    Invariants: rows of `_flows` that are None have no rate, no bytes left and a path of padding;
    `_spare` of a link is its rate less the rates of its flows, as of the last change.
    """

    def __init__(self, world: World, quantum_s: float) -> None:
        self._world = world
        self._quantum_s = quantum_s
        self.rates: Floats = np.full(1, np.inf)
        self.sides: Ints = np.zeros(1, np.int64)
        self.carried: Floats = np.zeros(1)
        self._links = 1  # in use
        self._spare: Floats = np.full(1, np.inf)
        self._paths: Ints = np.zeros((_FIRST_ROWS, 2), np.int64)
        self._left: Floats = np.zeros(_FIRST_ROWS)  # bytes, at time `_at`
        self._at: Floats = np.zeros(_FIRST_ROWS)
        self._rate: Floats = np.zeros(_FIRST_ROWS)
        self._weight: Floats = np.ones(_FIRST_ROWS)
        self._flows: list[Flow | None] = []
        self._vacant: list[int] = []  # rows
        self._solve_at = -1.0  # when the next solution is scheduled for

    def link(self, rate: float) -> Link:
        """A new link; `rate` in bytes per second."""
        number = self._links
        self._links += 1
        if number == len(self.rates):
            self.sides = np.append(self.sides, np.zeros_like(self.sides))
            self.rates, self.carried, self._spare = (
                np.append(a, np.zeros_like(a)) for a in (self.rates, self.carried, self._spare)
            )
        self.rates[number] = self._spare[number] = rate
        return Link(self, number)

    def spare(self, number: int) -> float:
        """`Link.spare` of the link in this row."""
        return float(self._spare[number])

    def start(
        self,
        path: list[Link],
        size: float,
        on_done: Callable[..., None],
        *args: Any,
        weight: float = 1.0,
    ) -> Flow:
        """Send bytes along a path.

        Args:
            path: the links.
            size: bytes.
            on_done: called when the last byte leaves.
            *args: of the call.
            weight: its share of a full link, beside those of other flows.
        """
        world = self._world
        links = [link.number for link in path]
        row = self._row(len(links))
        flow = self._flows[row] = Flow(row, links, on_done, args)
        self._paths[row, : len(links)] = links
        self._left[row] = size
        self._weight[row] = weight
        self._at[row] = world.now
        spare = self._spare
        rate = float(min(spare[i] for i in links))
        if rate > _LEFTOVER * self.rates[links[0]] and not self._frozen(links):
            self._rate[row] = rate
            for i in links:
                spare[i] -= rate
            if size <= rate * self._quantum_s:
                world.after(size / rate, self._maybe_done, flow)
        if self._solve_at < world.now:
            first = len(self._flows) - len(self._vacant) == 1
            self._solve_at = world.now + (0.0 if first else self._quantum_s)
            world.at(self._solve_at, self._tick)
        return flow

    def end_flow(self, flow: Flow) -> float:
        """Stop a flow. Bytes that were sent stay counted; returns how many weren't."""
        if flow.row < 0:
            return 0.0
        self._settle(flow)
        left = float(self._left[flow.row])
        self._remove(flow)
        return left

    def rewired(self) -> None:
        """Links changed their side: solve again."""
        self._solve()

    # -- one flow ---------------------------------------------------------------------------------

    def _row(self, width: int) -> int:
        """A vacant row for a path of `width` links."""
        if width > self._paths.shape[1]:
            pad = np.zeros((len(self._paths), width - self._paths.shape[1]), np.int64)
            self._paths = np.hstack((self._paths, pad))
        if self._vacant:
            return self._vacant.pop()
        row = len(self._flows)
        self._flows.append(None)
        if row == len(self._left):
            self._paths = np.vstack((self._paths, np.zeros_like(self._paths)))
            self._left, self._at, self._rate, self._weight = (
                np.append(a, np.zeros_like(a))
                for a in (self._left, self._at, self._rate, self._weight)
            )
        return row

    def _frozen(self, links: list[int]) -> bool:
        """Whether a partition lies on a path."""
        return len({side for i in links if (side := int(self.sides[i]))}) > 1

    def _settle(self, flow: Flow) -> None:
        """Count the bytes that have flowed since the flow was last settled."""
        row, now = flow.row, self._world.now
        left = self._left[row]
        sent = min(left, self._rate[row] * (now - self._at[row]))
        self._left[row] = left - sent
        self._at[row] = now
        for i in flow.links:
            self.carried[i] += sent

    def _remove(self, flow: Flow) -> None:
        row = flow.row
        rate = self._rate[row]
        for i in flow.links:
            self._spare[i] += rate
        self._rate[row] = self._left[row] = 0.0
        self._paths[row] = _NOWHERE
        self._flows[row] = None
        self._vacant.append(row)
        flow.row = -1

    def _maybe_done(self, flow: Flow) -> None:
        row = flow.row
        if row < 0 or self._rate[row] <= 0:
            return
        self._settle(flow)
        if self._left[row] > self._rate[row] * 1e-9 + 1e-6:
            return  # the flow became slower: the next solution schedules its end again
        self._remove(flow)
        flow.on_done(*flow.args)

    # -- all flows --------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._solve()
        if len(self._flows) > len(self._vacant):
            self._solve_at = self._world.now + self._quantum_s
            self._world.at(self._solve_at, self._tick)

    def _solve(self) -> None:
        count, now = len(self._flows), self._world.now
        paths, left, rate = self._paths[:count], self._left[:count], self._rate[:count]
        sent = np.minimum(left, rate * (now - self._at[:count]))
        left -= sent
        self._at[:count] = now
        for column in paths.T:
            self.carried += np.bincount(column, sent, len(self.rates))
        rate[:] = 0.0
        self._spare[:] = self.rates
        moving = paths[:, 0] != _NOWHERE
        if self.sides.any():
            moving &= ~self._cut(paths)
        open_ = np.flatnonzero(moving)
        for _ in range(_ROUNDS):
            if not len(open_):
                break
            open_ = self._fill(open_)
        ends = np.flatnonzero((rate > 0) & (left <= rate * (self._quantum_s * 1.001)))
        seconds = left[ends] / rate[ends]
        for row, wait_s in zip(ends.tolist(), seconds.tolist(), strict=True):
            self._world.after(wait_s, self._maybe_done, self._flows[row])

    def _cut(self, paths: Ints) -> npt.NDArray[np.bool_]:
        """Which of these paths cross a partition."""
        sides = self.sides[paths]
        high: Ints = sides.max(axis=1)
        low: Ints = np.where(sides == 0, self.sides.max(), sides).min(axis=1)
        cut: npt.NDArray[np.bool_] = (high > 0) & (low != high)
        return cut

    def _fill(self, open_: Ints) -> Ints:
        """Give each flow its share of its links' unused rate; returns the flows that can still grow."""
        paths, spare, links = self._paths[open_], self._spare, len(self.rates)
        weight = self._weight[open_]
        load = np.zeros(links)
        for column in paths.T:
            load += np.bincount(column, weight, links)
        load[load == 0.0] = 1.0
        grown = (spare / load)[paths].min(axis=1) * weight
        self._rate[open_] += grown
        for column in paths.T:
            spare -= np.bincount(column, grown, links)
        room = spare > self.rates * _LEFTOVER
        room[_NOWHERE] = True
        return open_[room[paths].all(axis=1)]

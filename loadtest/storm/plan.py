"""What a storm is to be, and the bound it is measured against. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from p2pcache.core.format.chunking import nominal_chunk_bytes

VOID_BUSY = 0.80  # above it the CPU, not the protocol, was measured
NAIVE_S = 30.0  # how long the naive rival may take: its size is chosen so
MIN_NAIVE_BYTES = 4 << 20  # below it, connection set-up would be measured


@dataclass(frozen=True, slots=True)
class Plan:
    """One storm. Rates are nominal, in bytes per second."""

    nodes: int
    rate: float
    origin_rate: float
    size_bytes: int
    rivals: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    seed: int = 0
    agent_flags: tuple[str, ...] = ()
    tracker_flags: tuple[str, ...] = ()
    racks: int = 0  # the nodes are spread over so many; 0: one flat network
    uplink: float = 0.0  # of each rack
    labelled: bool = True  # the agents are told their racks
    fault_s: float = 5.0  # for how long storage is in trouble
    delay_s: float = 0.0  # between any two hosts, one way
    loss: float = 0.0  # share of packets that never arrive; with a delay
    logs: str = ""  # directory that gets every daemon's log; "": they go away
    rates: tuple[float, ...] = ()  # each node's; (): `rate` for all
    shards: int = 1  # files of weights
    run_bytes: int = 0  # a run of the model; 0: what its size gives
    origin_latency_s: float = 0.0  # one way, to storage only
    other_code: str = ""  # a checkout that every second agent runs; "": none does

    def rate_of(self, node: int) -> float:
        """The nominal rate of a node's link."""
        return self.rates[node] if self.rates else self.rate

    def rack_of(self, node: int) -> int:
        """Which rack a node is in, from 1 on; 0: there are none."""
        return 1 + node * self.racks // self.nodes if self.racks else 0

    def is_other(self, node: int) -> bool:
        """Whether a node runs the other code."""
        return bool(self.other_code) and node % 2 == 1

    @property
    def chunk_bytes(self) -> int:
        """P of the bound: a run."""
        return self.run_bytes or nominal_chunk_bytes(self.size_bytes)

    @property
    def naive_bytes(self) -> int:
        """Model size for the naive rival: N x F / B_o would take minutes with the storm's own."""
        affordable = int(NAIVE_S * self.origin_rate / self.nodes)
        return max(MIN_NAIVE_BYTES, min(self.size_bytes, affordable))


@dataclass(frozen=True, slots=True)
class Links:
    """TCP goodput, bytes per second, measured on the shaped links of this run."""

    node: float  # one flow between two nodes whose links have the plan's `rate`: u and d
    origin: float  # B_o
    uplink: float = math.inf  # one flow between two racks


def lower_bound_s(
    size_bytes: int, chunk_bytes: int, downs: Sequence[float], ups: Sequence[float], origin: float
) -> float:
    """T_LB: no distribution of these bytes over these links can end sooner.

    Args:
        size_bytes: F.
        chunk_bytes: P.
        downs: d of each receiver.
        ups: u of each receiver.
        origin: B_o.

    Returns:
        max(F/B_o, F/min d, N*F/(B_o + sum u)) + ceil(log2 N) * P/u, with the slowest u.
    """
    count = len(downs)
    flow = max(size_bytes / origin, size_bytes / min(downs),
               count * size_bytes / (origin + sum(ups)))  # fmt: skip
    return flow + math.ceil(math.log2(count)) * chunk_bytes / min(ups) if count > 1 else flow


def bound_s(plan: Plan, links: Links, size_bytes: int, count: int) -> float:
    """T_LB of the first `count` nodes of this plan on measured links."""
    rates = [links.node * plan.rate_of(node) / plan.rate for node in range(count)]
    downs = [min(rate, links.uplink) for rate in rates]  # each byte enters each rack at least once
    return lower_bound_s(size_bytes, plan.chunk_bytes, downs, rates, links.origin)


def late_bound_s(plan: Plan, links: Links, size_bytes: int, late: int, start_s: float) -> float:
    """The bound of a node that joins a storm which runs already, from its own start.

    All that it needs comes through its link; all that `late` nodes need, which start together, through
    what the origin and all nodes can send; and what the origin hasn't sent by then, it sends after.

    Returns:
        max(F/min d, L*F/(B_o + sum u), F/B_o - start), for L late nodes.
    """
    down = min(links.node, links.uplink)
    sent = links.origin + plan.nodes * links.node
    return max(size_bytes / down, late * size_bytes / sent, size_bytes / links.origin - start_s)

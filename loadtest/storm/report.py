"""A storm's result: judged, as JSON, and as a table that a person understands."""

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.storm.contest import Score
from loadtest.storm.faults import NEW_PULL_S, Trouble
from loadtest.storm.plan import VOID_BUSY, Links, Plan, bound_s, late_bound_s
from loadtest.storm.race import NewPull, Outcome, Race
from p2pcache.core.units import format_bytes


@dataclass(slots=True)
class OriginBytes:
    """What left the origin during a storm."""

    server: int  # bodies, by the S3 server's own counter
    interface: int  # everything on its link, with all headers, from the qdisc


@dataclass(slots=True)
class Report:
    """All numbers of one storm."""

    plan: Plan
    trouble: Trouble
    links: Links
    race: Race
    origin: OriginBytes
    size_bytes: int  # F: distinct bytes of the model, as pushed
    rivals: dict[str, Score] = field(default_factory=dict)
    left_racks: int = 0  # bytes that left racks by their uplinks, with all headers
    sent_again: int = 0  # TCP segments, by all nodes
    numbers: dict[str, int] = field(default_factory=dict)  # of nodes, by what they call themselves
    lease_ends: dict[str, int] = field(default_factory=dict)  # leases by why they ended
    new_pull: NewPull | None = None  # of another model, that began when the tracker had failed

    @property
    def counted(self) -> list[Outcome]:
        """The nodes whose time counts: not the unlucky one of a fault."""
        unlucky = self.trouble.unlucky(self.plan)
        return [o for o in self.race.outcomes if o.node not in unlucky]

    @property
    def t_lb(self) -> float:
        """The bound for the counted nodes, from the goodput measured in this run."""
        return bound_s(self.plan, self.links, self.size_bytes, len(self.counted))

    @property
    def t_last(self) -> float | None:
        """When the last counted node was done; None if one of them failed."""
        return (
            max(o.ended_s for o in self.counted) if all(o.code == 0 for o in self.counted) else None
        )

    @property
    def t_median(self) -> float | None:
        """When the median counted node was done."""
        if self.t_last is None:
            return None
        return statistics.median(o.ended_s for o in self.counted)

    @property
    def late(self) -> dict[int, float]:
        """Own time / the bound from their own start, of the nodes that started late and succeeded."""
        nodes = self.trouble.late(self.plan)
        found = {}
        for o in self.race.outcomes:
            if o.node in nodes and o.code == 0:
                bound = late_bound_s(
                    self.plan, self.links, self.size_bytes, len(nodes), o.started_s
                )
                found[o.node] = (o.ended_s - o.started_s) / bound
        return found

    def failures(self) -> list[str]:
        """What isn't as it must be, one line each; empty: all is well."""
        found = []
        for outcome in self.race.outcomes:
            expected = self.trouble.expected(self.plan, outcome.node)
            if expected and outcome.code not in expected:
                found.append(
                    f"n{outcome.node} ended with {outcome.code}, expected {sorted(expected)}: "
                    f"{outcome.message}"
                )
            if outcome.equal is False:
                found.append(f"n{outcome.node} has other bytes than the source: {outcome.message}")
        if self.alpha > self.trouble.alpha:
            found.append(f"alpha is {self.alpha:.4f}, at most {self.trouble.alpha} is right here")
        if self.new_pull is not None:
            waited_s = self.new_pull.waited_s
            if waited_s is None:
                found.append(f"the new pull: {self.new_pull.failure}")
            elif waited_s > NEW_PULL_S:
                found.append(
                    f"the new pull waited for {waited_s:.1f} s, at most {NEW_PULL_S:g} is right"
                )
        found += [f"rival {n}: {s.failure}" for n, s in self.rivals.items() if s.failure]
        return found

    @property
    def alpha(self) -> float:
        """Bytes read from the origin per byte of the model."""
        others = self.new_pull.bytes_origin if self.new_pull is not None else 0
        return (self.origin.server - others) / self.size_bytes

    @property
    def beta(self) -> float | None:
        """Bytes between racks per byte of the model and further rack, with headers; None: no racks."""
        further = self.plan.racks - 1
        return self.left_racks / (self.size_bytes * further) if further > 0 else None

    @property
    def beta_data(self) -> float | None:
        """The same of the model's own bytes, as the receivers counted them by sender; None: no racks."""
        further = self.plan.racks - 1
        if further <= 0:
            return None
        return sum(map(self._crossed, self.race.outcomes)) / (self.size_bytes * further)

    def _crossed(self, o: Outcome) -> int:
        """Bytes that a node got from beyond its rack.

        A node names only the eight peers that gave most. If all others of its rack are among them, the rest came from
        beyond it; if not, only what is named counts, and the number is too low.
        """
        rack = self.plan.rack_of(o.node)
        mates = {
            name for name, n in self.numbers.items() if n != o.node and self.plan.rack_of(n) == rack
        }
        if mates <= o.came_from.keys():
            return o.bytes_peers - sum(o.came_from[name] for name in mates)
        far = self.numbers.keys() - mates
        return sum(count for sender, count in o.came_from.items() if sender in far)

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` writes."""
        t_last, t_median, t_lb = self.t_last, self.t_median, self.t_lb
        agents_cpu = sum(s for name, s in self.race.cpu_s.items() if name.startswith("n"))
        received = sum(o.bytes_origin + o.bytes_peers for o in self.race.outcomes)
        busy = self.race.cpu_busy
        return {
            "eta": round(t_lb / t_last, 4) if t_last else None,
            "eta_median": round(t_lb / t_median, 4) if t_median else None,
            "alpha": round(self.alpha, 5),
            "alpha_interface": round(self.origin.interface / self.size_bytes, 5),
            "beta": _round(self.beta),
            "beta_data": _round(self.beta_data),
            "sent_again": self.sent_again,
            "late": {f"n{node}": round(ratio, 4) for node, ratio in self.late.items()},
            "t_last": _round(t_last),
            "t_median": _round(t_median),
            "t_lb": _round(t_lb),
            "cpu_busy": round(busy, 3),
            "void": busy > VOID_BUSY,
            "cpu_s_per_gb": round(agents_cpu / (received / 1e9), 2) if received else None,
            "cpu_s_per_gb_other": self._cpu_other,
            "cpu_s": {name: round(s, 2) for name, s in self.race.cpu_s.items()},
            "rss_anon_mib": round(self.race.rss_anon_bytes / 2**20),
            "size_bytes": self.size_bytes,
            "chunk_bytes": self.plan.chunk_bytes,
            "chunks": -(-self.plan.size_bytes // self.plan.chunk_bytes),
            "goodput_node": round(self.links.node),
            "goodput_origin": round(self.links.origin),
            "goodput_uplink": round(self.links.uplink)
            if math.isfinite(self.links.uplink)
            else None,
            "plan": asdict(self.plan),
            "counted_nodes": [o.node for o in self.counted],
            "nodes": [asdict(o) for o in self.race.outcomes],
            "origin_curve": self.race.origin_curve,
            "story": self.race.story,
            "new_pull_s": _round(self.new_pull.waited_s) if self.new_pull is not None else None,
            "new_pull_phases": self.new_pull.phases if self.new_pull is not None else {},
            "lease_ends": self.lease_ends,
            "failures": self.failures(),
            "rivals": {name: score.as_json() for name, score in self.rivals.items()},
        }

    @property
    def _cpu_other(self) -> tuple[float, float] | None:
        """CPU-s per GB received of agents with this code and with the other; None: one half didn't run or receive."""
        spent, received = [0.0, 0.0], [0, 0]
        for o in self.race.outcomes:
            other = self.plan.is_other(o.node)
            spent[other] += self.race.cpu_s.get(f"n{o.node}", 0.0)
            received[other] += o.bytes_origin + o.bytes_peers
        if not all(spent) or not all(received):
            return None
        own, others = (s / (n / 1e9) for s, n in zip(spent, received, strict=True))
        return round(own, 2), round(others, 2)

    def as_text(self) -> str:
        """The table."""
        data, t_last = self.as_json(), self.t_last
        void = "busy: void, the times say nothing" if data["void"] else "busy"
        lines = [
            "node   seconds  half at  from origin   from peers  result",
            *(self._row(o) for o in self.race.outcomes),
            "",
            f"T_LB    {data['t_lb']:8.2f} s   the bound, from goodput {self._links()}",
            f"T_last  {_shown(t_last, ' s')}   the last node is done; median {_shown(self.t_median, ' s').strip()}",
            f"eta     {_shown(data['eta'])}     T_LB / T_last; median node {_shown(data['eta_median']).strip()}",
            f"alpha   {self.alpha:8.4f}     origin bytes / model bytes; with headers {data['alpha_interface']:.4f}",
            f"CPU     {data['cpu_busy']:8.0%}     {void}; {data['cpu_s_per_gb']} CPU-s per GB received",
            f"memory  {data['rss_anon_mib']:5} MiB    RssAnon, at most, of any agent",
        ]
        if self.beta is not None:
            lines.insert(
                -2,
                f"beta    {self.beta:8.4f}     bytes between racks / (model * (racks - 1)), with headers and all "
                f"else that crosses; the model's own {_shown(self.beta_data).strip()}; {self.sent_again} segments "
                "sent again by the nodes",
            )
        if data["cpu_s_per_gb_other"] is not None:
            own, other = data["cpu_s_per_gb_other"]
            ratio = f"{other / max(own, 0.01):8.3f}     as much for agents"
            lines.insert(-1, f"        {ratio} with the other code: {other} for {own}")
        if late := self.late:
            each = ", ".join(f"n{node} {ratio:.3f}" for node, ratio in late.items())
            lines.insert(
                -2,
                f"late    {max(late.values()):8.3f}     own time / the bound from the own start, the slowest: {each}",
            )
        if self.new_pull is not None:
            waited = _shown(self.new_pull.waited_s, " s")
            spent = ", ".join(f"{name} {s:.2f}" for name, s in self.new_pull.phases.items())
            lines.append(
                f"new     {waited}   until the first byte of a pull that began without a tracker: {spent}"
            )
        if self.lease_ends:
            ends = ", ".join(f"{count} {why}" for why, count in sorted(self.lease_ends.items()))
            lines.append(f"leases  {sum(self.lease_ends.values()):8}     by how they ended: {ends}")
        lines += self._rivals()
        failures = self.failures()
        lines += ["", *(f"WRONG: {f}" for f in failures)] if failures else ["", "all as it must be"]
        return "\n".join(lines)

    def _row(self, o: Outcome) -> str:
        result = "every file equals the source" if o.ok and o.equal else o.message or "not compared"
        if o.code:
            result = f"exit {o.code}: {result}"
        if o.started_s > 1:
            result += f" (started at {o.started_s:.1f} s)"
        return (
            f"n{o.node:<5} {o.ended_s:7.2f}  {o.half_s:7.2f}  {format_bytes(o.bytes_origin):>11}  "
            f"{format_bytes(o.bytes_peers):>11}  {result}"
        )

    def _rivals(self) -> list[str]:
        """Ours and theirs, in the same units."""
        if not self.rivals:
            return []
        busy = self.race.cpu_busy
        ours = Score(
            self.size_bytes, self.t_lb, self.t_last, self.t_median,
            self.origin.interface / self.size_bytes, busy,
        )  # fmt: skip
        return [
            "",
            "                     eta   T_last   median  alpha on the wire   CPU      model",
            *(_line(name, score) for name, score in {"p2pcache": ours, **self.rivals}.items()),
        ]

    def _links(self) -> str:
        node, origin = self.links.node * 8e-6, self.links.origin * 8e-6
        return f"{node:.1f} Mbit/s between nodes, {origin:.1f} from the origin"


def _line(name: str, score: Score) -> str:
    void = "  void" if score.void else ""
    return (
        f"{name:17}{_shown(score.eta)} {_shown(score.t_last)} {_shown(score.t_median)} "
        f"{score.alpha_interface:18.3f}  {score.cpu_busy:4.0%}  {format_bytes(score.size_bytes):>9}{void}"
    )


def _shown(value: float | None, unit: str = "") -> str:
    return f"{'-':>8}{' ' * len(unit)}" if value is None else f"{value:8.3f}{unit}"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)

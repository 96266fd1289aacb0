"""Results that storms have written with `--json`, read again for a report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pcache.errors import UsageError

OURS = "p2pcache"


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant in one storm. Times in seconds; None: not all nodes got there.

    Attributes:
        alpha: origin bytes / model bytes, on the wire where that was measured.
        cpu_busy: share of all cores of the machine that ran all nodes; None: on machines of their own.
        void: the CPU was measured, not the protocol.
    """

    name: str
    nodes: int
    eta: float | None
    t_lb: float
    t_last: float | None
    t_median: float | None
    alpha: float
    size_bytes: int
    cpu_busy: float | None
    cpu_s_per_gb: float | None
    void: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """One node's way: (seconds, share of the model)."""

    name: str
    points: list[tuple[float, float]]
    counted: bool
    ended_s: float
    code: int


@dataclass(frozen=True, slots=True)
class Storm:
    """One result file."""

    source: str
    what: str  # "namespaces" or "fleet"
    entries: list[Entry]  # ours first
    curves: list[Curve]
    origin: list[tuple[float, float]]  # (seconds, copies of the model that left the origin)
    story: list[tuple[float, str]]
    failures: list[str]
    faults: list[str]
    node_rate: float  # goodput, bytes per second
    origin_rate: float
    chunks: int
    racks: int = 0  # 0: one flat network
    uplink: float = 0.0  # goodput of a rack's, bytes per second
    beta: float | None = None  # copies between racks, on the wire ..
    beta_data: float | None = None  # .. and of the model's own bytes

    @property
    def plain(self) -> bool:
        """Comparable with others of more or fewer nodes: no faults, one flat network, a bound that holds."""
        return not self.faults and not self.racks and not self.beaten

    @property
    def beaten(self) -> bool:
        """A fleet that was quicker than the bound: the rates that it was given are wrong."""
        return self.what == "fleet" and (self.ours.eta or 0.0) > 1

    @property
    def ours(self) -> Entry:
        """p2pcache."""
        return self.entries[0]


def read(path: Path) -> Storm:
    """One result.

    Raises:
        UsageError: it isn't one.
    """
    try:
        return _storm(path.name, json.loads(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} isn't the JSON of a storm: {error!r}") from None


def _storm(source: str, data: Mapping[str, Any]) -> Storm:
    size, nodes = int(data["size_bytes"]), int(data["plan"]["nodes"])
    fleet = data.get("what") == "fleet"
    counted = {int(node) for node in data["counted_nodes"]}
    ours = _entry(OURS, nodes, data, data.get("alpha_interface", data["alpha"]))
    rivals = data.get("rivals") or {}
    return Storm(
        source, "fleet" if fleet else "namespaces",
        [ours, *(_entry(str(n), nodes, r, r["alpha_interface"]) for n, r in rivals.items())],
        [_curve(node, size, int(node["node"]) in counted) for node in data["nodes"]],
        [(float(at), int(sent) / size) for at, sent in _from_zero(data.get("origin_curve") or [])],
        [_event(str(line)) for line in data.get("story") or []],
        [str(failure) for failure in data["failures"]],
        [str(fault) for fault in data["plan"].get("faults") or []],
        float(data["goodput_node"]), float(data["goodput_origin"]), int(data["chunks"]),
        int(data["plan"].get("racks") or 0), float(data.get("goodput_uplink") or 0.0),
        _number(data.get("beta")), _number(data.get("beta_data")),
    )  # fmt: skip


def _entry(name: str, nodes: int, data: Mapping[str, Any], alpha: float) -> Entry:
    return Entry(
        name, nodes, _number(data["eta"]), float(data["t_lb"]), _number(data["t_last"]),
        _number(data["t_median"]), float(alpha), int(data["size_bytes"]),
        _number(data.get("cpu_busy")), _number(data.get("cpu_s_per_gb")), bool(data.get("void")),
        str(data.get("failure", "")),
    )  # fmt: skip


def _curve(node: Mapping[str, Any], size: int, counted: bool) -> Curve:  # noqa: FBT001
    started = float(node["started_s"])
    points = [(started, 0.0), *((float(at), int(done) / size) for at, done in node["curve"])]
    name = str(node.get("name") or f"n{node['node']}")
    return Curve(name, points, counted, float(node["ended_s"]), int(node["code"]))


def _from_zero(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """A counter's samples since the first one."""
    return [(at, sent - curve[0][1]) for at, sent in curve]


def _event(line: str) -> tuple[float, str]:
    """`12.3 s: text`, as a race writes it."""
    at, _, text = line.partition(" s: ")
    return float(at), text


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

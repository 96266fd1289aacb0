"""How the swarm's knobs bear on eta in simulation: `python -m loadtest.policysweep DIR`.

One knob is turned at a time, the others stay at their defaults; some matter only under a fault, and are
turned under it. Writes `policies.json` and `policies.svg` into DIR after each knob: eta of the last node,
the median over the seeds, the default filled. Some 200 storms: three quarters of an hour; `--runs`,
`--nodes`, `--seeds` and `--only` make it less.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from loadtest.kit.flags import count
from p2pcache.core.settings import LeaseSettings, MemberSettings, SwarmSettings, UploadSettings
from p2pcache.sim.calibrate import QUEUE_S
from p2pcache.sim.scenarios import Storm, run

WIDTH, HEIGHT, GAP, HEAD = 300, 150, 48, 30  # pixels of one plot
COLUMNS = 3  # a page of documentation is about as wide
COLOURS = ("#1f6fb2", "#c2571a", "#2d7d46", "#7b4fa3")  # of the numbers of nodes
SLOW: dict[str, Any] = {"slow": 0.1}
LOST: dict[str, Any] = {"no_tracker_after": 0.3}


class Knob(NamedTuple):
    """One setting: what it is turned to, how, and in which storms."""

    values: Sequence[float]
    turned: Callable[[Any], dict[str, Any]]
    default: float
    under: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    words: str = ""  # the same, for people


PARTS: dict[str, Callable[..., Any]] = {  # of a Storm
    "settings": SwarmSettings, "leases": LeaseSettings, "uploads": UploadSettings,
    "members": MemberSettings,
}  # fmt: skip


def _knob(
    part: str, name: str, *values: float, under: dict[str, Any] | None = None, words: str = ""
) -> Knob:
    """A field of a part of a Storm."""
    kind = PARTS[part]
    return Knob(
        values, lambda x: {part: kind(**{name: x})}, getattr(kind(), name), under or {}, words
    )


KNOBS: dict[str, Knob] = {
    "leases in flight at least": _knob("leases", "in_flight", 1, 2, 4, 8, 16),
    "window, runs": _knob("settings", "window_runs", 8, 32, 64, 256, 1024),
    "requests outstanding": _knob("settings", "outstanding", 3, 5, 7, 10, 14),
    "upload slots": _knob("uploads", "slots", 3, 5, 7, 10, 14),
    "neighbours": _knob("members", "neighbours", 6, 12, 24, 40),
    "endgame: a second request after": _knob(
        "settings", "duplicate_after", 1, 2, 4, 8, under=SLOW, words="expected times; a tenth of the nodes slow"),
    "no lease to who takes longer than": _knob(
        "leases", "slow_node_ratio", 1.2, 1.6, 3, 6, under=SLOW, words="times the median; a tenth of the nodes slow"),
    "owner's patience, s": _knob(
        "settings", "owner_patience_s", 2, 4, 8, 16, under=LOST, words="tracker lost for good at 30 %"),
}  # fmt: skip

Curves = dict[int, list[tuple[float, float]]]  # nodes -> (value, eta)


def measure(
    names: Sequence[str], sizes: Sequence[int], *, runs: int, seeds: int, queue_s: float
) -> Iterator[tuple[str, Curves]]:
    """Eta by knob, number of nodes and value, one knob after the other."""
    for name in names:
        knob, curves = KNOBS[name], dict[int, list[tuple[float, float]]]()
        for nodes in sizes:
            for value in knob.values:
                change = {**knob.under, **knob.turned(value)}
                storms = (
                    Storm(nodes=nodes, runs=runs, seed=seed, queue_s=queue_s, **change)
                    for seed in range(1, seeds + 1)
                )
                etas = (run(storm).eta for storm in storms)
                eta = round(statistics.median(etas), 4)
                curves.setdefault(nodes, []).append((value, eta))
                print(f"{name} {value:g}, {nodes} nodes: eta {eta:.4f}", flush=True)
        yield name, curves


def plot(found: dict[str, Curves], about: str) -> str:
    """All curves as one SVG."""
    etas = [eta for curves in found.values() for curve in curves.values() for _, eta in curve]
    floor = int(min(etas) * 10) / 10  # the tenth below the lowest
    parts = []
    for place, (name, curves) in enumerate(found.items()):
        left = GAP + place % COLUMNS * (WIDTH + GAP)
        top = 2 * HEAD + place // COLUMNS * (HEIGHT + HEAD + GAP)
        scale = Scale(left, top, min(floor, 0.9))
        parts.append(_frame(name, scale))
        parts += [
            _line(curve, KNOBS[name].default, scale, COLOURS[i % len(COLOURS)])
            for i, curve in enumerate(curves.values())
        ]
    sizes = list(next(iter(found.values())))
    legend = "".join(
        f'<tspan fill="{COLOURS[i % len(COLOURS)]}" font-weight="bold"> {n} nodes</tspan>'
        for i, n in enumerate(sizes)
    )
    width = GAP + min(COLUMNS, len(found)) * (WIDTH + GAP)
    height = HEAD - (-len(found) // COLUMNS) * (HEIGHT + HEAD + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{GAP}" y="20">eta of the last node,{legend}; {escape(about)}; the default is filled</text>'
        f"{''.join(parts)}</svg>\n"
    )


class Scale(NamedTuple):
    """Where one plot lies, and what its foot stands for."""

    left: int
    top: int
    floor: float

    def y(self, eta: float) -> float:
        """Where an eta lies."""
        return round(self.top + HEIGHT * (1 - (eta - self.floor) / (1 - self.floor)), 1)

    def x(self, place: int, count: int) -> float:
        """Where the value with this number lies."""
        return round(self.left + WIDTH / count * (place + 0.5), 1)


def _frame(name: str, scale: Scale) -> str:
    knob, left = KNOBS[name], scale.left
    steps = [n / 10 for n in range(round(scale.floor * 10), 11)]
    lines = "".join(
        f'<line x1="{left}" x2="{left + WIDTH}" y1="{scale.y(e)}" y2="{scale.y(e)}" stroke="#ddd"/>'
        f'<text x="{left - 6}" y="{scale.y(e) + 4}" text-anchor="end" fill="#555">{e}</text>'
        for e in steps
    )
    values = "".join(
        f'<text x="{scale.x(i, len(knob.values))}" y="{scale.top + HEIGHT + 18}" text-anchor="middle"'
        f'{_bold(value == knob.default)}>{value:g}</text>'
        for i, value in enumerate(knob.values)
    )  # fmt: skip
    words = (
        f'<text x="{left}" y="{scale.top + HEIGHT + 36}" fill="#555">{escape(knob.words)}</text>'
    )
    title = f'<text x="{left}" y="{scale.top - 10}" font-weight="bold">{escape(name)}</text>'
    return f"{title}{lines}{values}{words if knob.words else ''}"


def _bold(default: bool) -> str:  # noqa: FBT001 - one attribute
    return ' font-weight="bold"' if default else ""


def _line(curve: list[tuple[float, float]], default: float, scale: Scale, colour: str) -> str:
    spots = [(scale.x(i, len(curve)), scale.y(eta), value) for i, (value, eta) in enumerate(curve)]
    path = " ".join(f"{x},{y}" for x, y, _ in spots)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="4.5" stroke="{colour}" stroke-width="1.5" '
        f'fill="{colour if value == default else "white"}"/>'
        for x, y, value in spots
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.policysweep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--runs", type=count, default=512, help="of the model [512]")
    add("--nodes", type=count, nargs="+", default=[16, 50], metavar="N", help="[16 50]")
    add(
        "--seeds",
        type=count,
        default=2,
        help="storms of each kind, of which the median counts [2]",
    )
    add("--queue", type=float, default=QUEUE_S, metavar="S",
        help="that a full link adds to a message [%(default)g, as the emulated ones]")  # fmt: skip
    add("--only", action="append", choices=list(KNOBS), metavar="KNOB",
        help=f"may be repeated; one of: {', '.join(KNOBS)}")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and plot. Exit code 2: not a place to write to."""
    options = _parse(argv)
    folder, found = options.folder, dict[str, Curves]()
    about = f"{options.runs} runs, {options.queue:g} s of bytes before a full link"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        swept = measure(
            options.only or list(KNOBS), options.nodes, runs=options.runs, seeds=options.seeds, queue_s=options.queue
        )  # fmt: skip
        for name, curves in swept:
            found[name] = curves
            (folder / "policies.json").write_text(json.dumps(found, indent=1) + "\n")
            (folder / "policies.svg").write_text(plot(found, about))
    except OSError as error:
        print(f"policysweep: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

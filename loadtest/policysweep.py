"""How the swarm's knobs bear on eta in simulation: `python -m loadtest.policysweep DIR`.

One knob is turned at a time, the others stay at their defaults. Writes `policies.json` and
`policies.svg` into DIR: eta of the last node, the median over the seeds, the default marked.
Takes about five minutes on one core.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

from p2pcache.core.settings import LeaseSettings, SwarmSettings, UploadSettings
from p2pcache.sim.scenarios import Storm, run

RUNS = 512
SIZES = {16: (1, 2, 3), 50: (1,)}  # nodes -> seeds
FLOOR = 0.5  # of the plots' y axis
WIDTH, HEIGHT, GAP = 260, 150, 40  # pixels of one plot
COLOURS = {16: "#1f6fb2", 50: "#c2571a"}

Sweep = tuple[tuple[int, ...], int, Callable[[int], dict[str, object]]]
SWEEPS: dict[str, Sweep] = {
    "leases in flight": ((2, 4, 8, 16, 32), LeaseSettings().in_flight,
                         lambda x: {"leases": LeaseSettings(in_flight=x)}),
    "window, runs": ((8, 32, 128, 512), SwarmSettings().window_runs,
                     lambda x: {"settings": SwarmSettings(window_runs=x)}),
    "requests outstanding": ((6, 8, 12, 16, 24), SwarmSettings().outstanding,
                             lambda x: {"settings": SwarmSettings(outstanding=x)}),
    "upload slots": ((4, 8, 12, 16, 24), UploadSettings().slots,
                     lambda x: {"uploads": UploadSettings(slots=x)}),
    "queue before BUSY": ((0, 4, 8, 16), UploadSettings().queue,
                          lambda x: {"uploads": UploadSettings(queue=x)}),
}  # fmt: skip

Curve = list[tuple[int, float]]


def measure() -> dict[str, dict[int, Curve]]:
    """Eta by knob, number of nodes and value."""
    found: dict[str, dict[int, Curve]] = {}
    for name, (values, _, change) in SWEEPS.items():
        for nodes, seeds in SIZES.items():
            curve: Curve = []
            for value in values:
                storms = (Storm(nodes=nodes, runs=RUNS, seed=seed) for seed in seeds)
                eta = statistics.median(run(storm, **change(value)).eta for storm in storms)
                curve.append((value, round(eta, 4)))
                sys.stdout.write(f"{name} {value}, {nodes} nodes: eta {eta:.4f}\n")
                sys.stdout.flush()
            found.setdefault(name, {})[nodes] = curve
    return found


def plot(found: dict[str, dict[int, Curve]]) -> str:
    """All curves as one SVG, one plot beside the other."""
    parts: list[str] = []
    for place, (name, curves) in enumerate(found.items()):
        left = GAP + place * (WIDTH + GAP)
        parts.append(_frame(name, left))
        for nodes, curve in curves.items():
            parts.append(_line(curve, SWEEPS[name][1], left, COLOURS[nodes]))
    legend = " ".join(f'<tspan fill="{COLOURS[n]}">{n} nodes</tspan>' for n in SIZES)
    width = GAP + len(found) * (WIDTH + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + 2 * GAP}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'{"".join(parts)}<text x="{GAP}" y="14">eta, {RUNS} runs: {legend}; '
        f"the default is filled</text></svg>\n"
    )


def _y(eta: float) -> float:
    return GAP + HEIGHT * (1 - (max(eta, FLOOR) - FLOOR) / (1 - FLOOR))


def _frame(name: str, left: int) -> str:
    lines = "".join(
        f'<line x1="{left}" x2="{left + WIDTH}" y1="{_y(e)}" y2="{_y(e)}" stroke="#ddd"/>'
        f'<text x="{left - 26}" y="{_y(e) + 4}">{e}</text>'
        for e in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    )
    return f'{lines}<text x="{left + 4}" y="{HEIGHT + 2 * GAP - 6}">{escape(name)}</text>'


def _line(curve: Curve, default: int, left: int, colour: str) -> str:
    step = WIDTH / len(curve)
    spots = [(left + step * (i + 0.5), _y(eta), value) for i, (value, eta) in enumerate(curve)]
    path = " ".join(f"{x:.0f},{y:.1f}" for x, y, _ in spots)
    dots = "".join(
        f'<circle cx="{x:.0f}" cy="{y:.1f}" r="4" stroke="{colour}" '
        f'fill="{colour if value == default else "white"}"/>'
        f'<text x="{x - 6:.0f}" y="{HEIGHT + GAP + 14}">{value}</text>'
        for x, y, value in spots
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{dots}'


def main(argv: list[str]) -> int:
    """Measure and plot into the directory that is given."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m loadtest.policysweep DIR\n")
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    found = measure()
    (folder / "policies.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "policies.svg").write_text(plot(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

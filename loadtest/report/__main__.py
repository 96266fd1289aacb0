"""`python -m loadtest.report RESULT.json... -o report.html`: storms as a page to look at.

Takes what `python -m loadtest.storm --json FILE` writes, one file or many, and writes one HTML file that
needs nothing else: eta against the number of nodes beside the rivals and the bound, and for each
storm the completion curve of every node, who finished when, what left the origin, and the CPU.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from loadtest.kit.flags import out_file
from loadtest.kit.results import OURS, Entry, Storm, read
from loadtest.report.plots import Plot, bars, ticks
from loadtest.storm.fleet import BEATEN
from loadtest.storm.plan import VOID_BUSY
from p2pcache.core.units import format_bytes
from p2pcache.errors import UsageError

# The order of the legend, and each one's colour in every chart.
COLOURS = {
    OURS: "ours", "libtorrent-leased": "c1", "libtorrent": "c2", "aria2": "c3", "http": "c4", "naive": "c5",
}  # fmt: skip
WORDS = {
    "eta": "the lower bound of the time / the time of the last node; 1 is the bound, which nothing can beat",
    "bound": "T_LB = max(F/B_o, F/min d, N F/(B_o + sum u)) + ceil(log2 N) P/u, with the goodput of one TCP "
    "flow measured on the same links in the same run",
    "alpha": "bytes that left the origin / bytes of the model; on shaped links counted on the wire, so headers "
    "make about 1.05 of the ideal 1",
    "beta": "bytes that cross between racks / (bytes of the model * (racks - 1)); 1 is one copy for each "
    "rack that has no origin",
    "void": f"over {VOID_BUSY:.0%} of the machine's cores were busy: the CPU was measured, not the protocol. Such "
    "points are hollow",
}


def page(storms: Sequence[Storm]) -> str:
    """The whole document."""
    css = (Path(__file__).parent / "report.css").read_text()
    body = [*_head(storms), *_against_n(storms)]
    for storm in sorted(
        storms, key=lambda s: (bool(s.faults), bool(s.racks), s.ours.nodes, s.source)
    ):
        body += _storm(storm)
    body += ["<h2>All figures</h2>", _table(storms), "<h2>What the words mean</h2>", "<dl>"]
    body += [f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in WORDS.items()]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>p2pcache: storms</title>\n<style>\n{css}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</dl>\n</body></html>\n"
    )


# -- the top ----------------------------------------------------------------------------------------


def _head(storms: Sequence[Storm]) -> list[str]:
    calm = [s for s in storms if s.plain and s.ours.t_last] or list(storms)
    calm = [s for s in calm if not s.ours.void] or calm  # a headline is nothing for void figures
    most = max(calm, key=lambda s: s.ours.nodes)
    largest = most.ours
    counted = "as the agents count them" if most.what == "fleet" else "headers included"
    tiles = [
        (_eta(largest.eta), f"of the bound with {largest.nodes} nodes: eta of the last node"),
        (f"{largest.alpha:.3f}", f"copies of the model left the origin (alpha), {counted}"),
    ]
    if (flat := _flatness(calm)) is not None:
        tiles.append((f"{flat[0]:.2f}x", f"the time of {flat[1]} nodes with {flat[2]}: flatness"))
    if (best := _best_rival(calm)) is not None:
        text = f"the time of p2pcache: {best[1]}, the best rival with {best[2]} nodes"
        tiles.append((f"{best[0]:.2f}x", text))
    lead = (
        "N nodes pull one model at the same moment. How near does the last of them come to what the links "
        "allow, and how often is storage read?"
    )
    return [
        "<h1>Startup storms, measured</h1>", f'<p class="lead">{lead}</p>',
        '<div class="tiles">',
        *(f'<div class="tile"><b>{value}</b><span>{escape(text)}</span></div>' for value, text in tiles),
        "</div>", *([f'<p class="wrong">Void: {WORDS["void"]}.</p>'] if largest.void else []),
    ]  # fmt: skip


def _flatness(storms: Sequence[Storm]) -> tuple[float, int, int] | None:
    """T of the most nodes / T of the fewest, of storms of the same bytes over the same links."""
    alike: dict[tuple[int, int], list[Entry]] = {}
    for storm in storms:
        if storm.ours.t_last and not storm.racks:
            key = (storm.ours.size_bytes, round(storm.node_rate * 8e-6 / 5))  # equal within noise
            alike.setdefault(key, []).append(storm.ours)
    group = max(alike.values(), key=len, default=[])
    few, many = (f(group, key=lambda e: e.nodes) if group else None for f in (min, max))
    if few is None or many is None or few.nodes == many.nodes:
        return None
    return (many.t_last or 0.0) / (few.t_last or 1.0), few.nodes, many.nodes


def _best_rival(storms: Sequence[Storm]) -> tuple[float, str, int] | None:
    """The best rival of the largest storm that had any: its eta's share, as a multiple of our time."""
    for storm in sorted(storms, key=lambda s: -s.ours.nodes):
        good = [e for e in storm.entries[1:] if e.eta and not e.void]
        if good and storm.ours.eta and not storm.ours.void:
            best = max(good, key=lambda e: e.eta or 0.0)
            return storm.ours.eta / (best.eta or 1.0), best.name, storm.ours.nodes
    return None


def _against_n(storms: Sequence[Storm]) -> list[str]:
    """Eta and alpha against N, over all storms without faults on one flat network."""
    by_name: dict[str, dict[int, list[Entry]]] = {}
    for storm in storms:
        for entry in storm.entries if storm.plain else []:
            if entry.eta:
                by_name.setdefault(entry.name, {}).setdefault(entry.nodes, []).append(entry)
    counts = sorted({nodes for found in by_name.values() for nodes in found})
    if len(counts) < 2:
        return []
    eta = Plot(counts, [n / 5 for n in range(6)], even=True, x_label="nodes", title="eta against N",
               y_text="{:.1f}".format)  # fmt: skip
    eta.level(1.0, "the bound", "bound")
    high = max(e.alpha for found in by_name.values() for group in found.values() for e in group)
    alpha = Plot(counts, ticks(max(1.2, high)), even=True, x_label="nodes", title="alpha against N",
                 y_text="{:g}".format)  # fmt: skip
    alpha.level(1.0, "each byte once", "bound")
    for name in sorted(by_name, key=_rank, reverse=True):  # ours on top
        for plot, value in ((eta, "eta"), (alpha, "alpha")):
            middle = {n: statistics.median(getattr(e, value) for e in group)
                      for n, group in sorted(by_name[name].items())}  # fmt: skip
            plot.line(list(middle.items()), _colour(name), name)
            for group in by_name[name].values():
                for e in group:
                    void = " void" if e.void else ""
                    said = f"{name}, {e.nodes} nodes: {getattr(e, value):.3f}{' (void)' if e.void else ''}"
                    plot.dot(e.nodes, getattr(e, value), _colour(name) + void, said)
    legend = _legend(sorted(by_name, key=_rank))
    return [
        "<h2>Against the number of nodes</h2>", '<div class="pair">',
        _card("eta: how near to the bound", "Higher is better.", legend + eta.svg()),
        _card("alpha: how often storage is read", "Lower is better.", legend + alpha.svg()),
        "</div>",
    ]  # fmt: skip


# -- one storm --------------------------------------------------------------------------------------


def _storm(storm: Storm) -> list[str]:
    ours = storm.ours
    faults = f", {', '.join(storm.faults)}" if storm.faults else ""
    racks = f" in {storm.racks} racks" if storm.racks else ""
    title = f"{ours.nodes} nodes{racks} at {storm.node_rate * 8e-6:.0f} Mbit/s{faults}"
    where = "agents of a fleet" if storm.what == "fleet" else "agents in network namespaces"
    about = (
        f"{where}; {format_bytes(ours.size_bytes)} in {storm.chunks} chunks; origin at "
        f"{storm.origin_rate * 8e-6:.0f} Mbit/s{_crossed(storm)}; {storm.source}"
    )
    same = all(e.size_bytes == ours.size_bytes for e in storm.entries)
    scaled = "" if same else "; of rivals with a smaller model scaled by their bound"
    cards = [
        '<div class="card stack">',
        _part("Every node's way to the whole model", "", _curve_legend(storm) + _curves(storm)),
        _cpu(storm),
        '</div><div class="card stack">',
        _part("The last node is done", f"Seconds{scaled}.", _finishes(storm)),
        _part("What left the origin", "Copies of the model (alpha).", _copies(storm)),
        "</div>",
    ]
    wrong = [f'<p class="wrong">WRONG: {escape(text)}</p>' for text in storm.failures]
    if storm.beaten:
        wrong.append(f'<p class="wrong">{escape(BEATEN)}</p>')
    return [
        f"<h2>{escape(title)}</h2>", f'<p class="about">{escape(about)}</p>', *wrong,
        '<div class="pair">', *cards, "</div>",
    ]  # fmt: skip


def _crossed(storm: Storm) -> str:
    """What went between racks, in words."""
    if not storm.racks:
        return ""
    beta = [f"{value:.2f} {what}" for value, what in
            ((storm.beta, "on the wire"), (storm.beta_data, "of the model's own bytes"))
            if value is not None]  # fmt: skip
    copies = f"; beta {', '.join(beta)}" if beta else ""
    return f"; uplinks at {storm.uplink * 8e-6:.0f} Mbit/s{copies}"


def _curves(storm: Storm) -> str:
    ours = storm.ours
    ends = [c.ended_s for c in storm.curves] + [storm.origin[-1][0] if storm.origin else 0.0]
    plot = Plot(ticks(max(ours.t_lb * 1.05, *ends)), [n / 4 for n in range(5)], x_label="seconds",
                title="completion of each node", y_text="{:.0%}".format)  # fmt: skip
    if storm.origin:
        plot.line(
            [(at, min(1.0, copies)) for at, copies in storm.origin], "origin", "left the origin"
        )
    for curve in storm.curves:
        end = (
            f"done at {curve.ended_s:.1f} s"
            if not curve.code
            else f"exit {curve.code} at {curve.ended_s:.1f} s"
        )
        kind = "ours" if curve.counted and not curve.code else "c5"
        plot.line(curve.points, f"node {kind}", f"{curve.name}: {end}")
    plot.upright(ours.t_lb, f"bound {ours.t_lb:.1f} s", "bound")
    for row, (at, text) in enumerate(storm.story, 1):
        plot.upright(at, text, "event", row)
    return plot.svg()


def _curve_legend(storm: Storm) -> str:
    parts = [("ours", "a node"), ("bound", "the bound of the last node")]
    if storm.origin:
        parts.append(("origin", "left the origin, on the wire"))
    if any(not c.counted or c.code for c in storm.curves):
        parts.append(("c5", "hit by the fault, or failed"))
    return _swatches(parts)


def _finishes(storm: Storm) -> str:
    scale = storm.ours.t_lb
    rows = []
    for entry in storm.entries:
        if not entry.t_last or not entry.eta:
            rows.append(
                (entry.name, 0.0, _colour(entry.name), "failed" if entry.failure else "not all")
            )
            continue
        seconds = entry.t_last if entry.size_bytes == storm.ours.size_bytes else scale / entry.eta
        void = " void" if entry.void else ""
        text = f"{seconds:.1f} s · eta {entry.eta:.3f}"
        rows.append((entry.name, seconds, _colour(entry.name) + void, text))
    return bars(rows, title="time of the last node", mark=scale, mark_text=f"bound {scale:.1f} s")


def _copies(storm: Storm) -> str:
    rows = [(e.name, e.alpha, _colour(e.name), f"{e.alpha:.3f}") for e in storm.entries]
    return bars(rows, title="origin bytes per model byte", mark=1.0, mark_text="once")


def _cpu(storm: Storm) -> str:
    rows = [
        (e.name, e.cpu_s_per_gb, _colour(e.name), f"{e.cpu_s_per_gb:.1f} CPU-s/GB")
        for e in storm.entries if e.cpu_s_per_gb is not None
    ]  # fmt: skip
    if not rows:
        return ""
    busy = ", ".join(
        f"{e.name} {e.cpu_busy:.0%}{' (void)' if e.void else ''}"
        for e in storm.entries if e.cpu_busy is not None
    )  # fmt: skip
    chart = bars(rows, title="CPU seconds per GB received")
    return _part("CPU of the nodes", f"CPU seconds per GB received; machine busy: {busy}.", chart)


def _part(title: str, about: str, content: str) -> str:
    words = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<h3>{escape(title)}</h3>{words}{content}"


def _card(title: str, about: str, content: str) -> str:
    return f'<div class="card">{_part(title, about, content)}</div>'


# -- the table --------------------------------------------------------------------------------------


def _table(storms: Sequence[Storm]) -> str:
    rows = []
    for storm in sorted(storms, key=lambda s: (s.ours.nodes, s.source)):
        fault = f" in {storm.racks} racks" if storm.racks else ""
        fault += f" {', '.join(storm.faults)}" if storm.faults else ""
        for e in storm.entries:
            cells = [
                f"{e.nodes}{fault}", e.name, _eta(e.eta), _s(e.t_last), _s(e.t_median), f"{e.t_lb:.1f} s",
                f"{e.alpha:.3f}", "-" if e.cpu_s_per_gb is None else f"{e.cpu_s_per_gb:.1f}",
                "-" if e.cpu_busy is None else f"{e.cpu_busy:.0%}", format_bytes(e.size_bytes),
            ]  # fmt: skip
            flag = (
                '<td class="flag">void</td>'
                if e.void
                else f'<td class="flag">{"failed" if e.failure else ""}</td>'
            )
            line = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            us = ' class="us"' if e.name == OURS else ""
            rows.append(f"<tr{us}>{line}{flag}</tr>")
    heads = (
        "nodes",
        "",
        "eta",
        "last",
        "median",
        "bound",
        "alpha",
        "CPU-s/GB",
        "busy",
        "model",
        "",
    )
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="card scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _legend(names: Sequence[str]) -> str:
    return _swatches([(_colour(name), name) for name in names])


def _swatches(parts: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="{kind}"></i>{escape(text)}</li>' for kind, text in parts)
    return f'<ul class="legend">{items}</ul>'


def _colour(name: str) -> str:
    return COLOURS.get(name, "c4")


def _rank(name: str) -> int:
    return list(COLOURS).index(name) if name in COLOURS else len(COLOURS)


def _eta(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def main(argv: list[str] | None = None) -> int:
    """Write one report. Exit code 2: a file isn't a storm's result."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("-o", "--output", type=out_file, required=True, metavar="FILE.html")
    options = parser.parse_args(argv)
    try:
        text = page([read(path) for path in options.results])
        options.output.write_text(text)
    except (UsageError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

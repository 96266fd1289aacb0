"""`python -m loadtest.shapes`: real storms in the shapes of users, one table (root).

Each row is a storm of its own (`loadtest.storm`), shorter than the model that it stands for and with that model's runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.kit.flags import out_file

LIMIT_S = 600.0  # of one row


class Shape(NamedTuple):
    """One row: its name, and the flags of its storm."""

    name: str
    flags: str
    alpha: float = 1.01  # at most, by the server's counter
    eta: float = 0.92  # at least


SHAPES = (
    Shape("256 KiB runs, 0.04 s", "--nodes 8 --rate 50mbit --size 128MiB"),
    Shape("256 KiB, 0.01 s", "--nodes 4 --rate 200mbit --size 128MiB"),
    Shape("256 KiB, 0.04 s, 1,020 runs", "--nodes 8 --rate 50mbit --size 255MiB", eta=0.95),
    Shape("256 KiB, 0.08 s", "--nodes 16 --rate 25mbit --size 128MiB"),
    Shape("1 MiB, 0.04 s", "--nodes 4 --rate 200mbit --size 512MiB"),
    Shape("1 MiB, 0.04 s, 1,023 runs", "--nodes 4 --rate 200mbit --size 1023MiB", eta=0.95),
    Shape("1 MiB, 0.17 s", "--nodes 8 --rate 50mbit --size 256MiB --run-size 1MiB"),
    Shape("1 MiB, three files", "--nodes 7 --rate 80mbit --size 384MiB --shards 3"),
    Shape("1 MiB, uneven links", "--nodes 7 --rates 48mbit,60mbit,70mbit,80mbit,90mbit,100mbit,120mbit "
          "--origin-rate 80mbit --size 256MiB --run-size 1MiB"),
    Shape("1 MiB, one node at a tenth", "--nodes 8 --rate 50mbit --size 256MiB --run-size 1MiB --fault slow-node",
          1.02, 0.85),
    Shape("1 MiB, storage at half", "--nodes 8 --rate 50mbit --origin-rate 25mbit --size 128MiB --run-size 1MiB"),
    Shape("1 MiB, storage at four times", "--nodes 8 --rate 50mbit --origin-rate 200mbit --size 256MiB "
          "--run-size 1MiB"),
    Shape("1 MiB, storage 5 ms away", "--nodes 8 --rate 50mbit --size 256MiB --run-size 1MiB --origin-latency 5ms"),
    Shape("1 MiB, storage 50 ms away", "--nodes 8 --rate 50mbit --size 256MiB --run-size 1MiB --origin-latency 50ms"),
    Shape("4 MiB, 0.34 s", "--nodes 4 --rate 100mbit --size 1024MiB --run-size 4MiB"),
    Shape("4 MiB, 0.34 s, two nodes", "--nodes 2 --rate 100mbit --size 1024MiB --run-size 4MiB"),
)  # fmt: skip
HEAD = f"{'shape':32} {'runs':>5} {'T_LB':>7} {'T_last':>7} {'eta':>6} {'alpha':>7} {'wire':>6} {'CPU':>5}"


def main(argv: list[str] | None = None) -> int:
    """Run all rows, or some. Exit code 0: each within its limits; 1: one isn't; 2: can't run here."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.shapes", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name has this")
    parser.add_argument("--json", type=out_file, metavar="FILE", help="write all rows here")
    options = parser.parse_args(argv)
    rows: dict[str, Any] = {}
    code = 0
    print(HEAD, flush=True)
    for shape in SHAPES:
        if options.only not in shape.name:
            continue
        found = measure(shape)
        if found is None:
            return 2
        rows[shape.name] = found
        right = (found["eta"] or 0.0) >= shape.eta and found["alpha"] <= shape.alpha
        code = code if right else 1
        print(line(shape, found) + ("" if right else "  *"), flush=True)
    if code:
        print("* eta is too low, or alpha too high")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return code


def measure(shape: Shape) -> dict[str, Any] | None:
    """What one storm found; None: it can't run here."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "storm.json"
        done = subprocess.run(
            [sys.executable, "-m", "loadtest.storm", *shape.flags.split(), "--json", str(out)],
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        if not out.exists():
            print(f"{shape.name}: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def line(shape: Shape, found: dict[str, Any]) -> str:
    """One row of the table."""
    last, eta = (f"{found[key]:.3f}" if found[key] else "-" for key in ("t_last", "eta"))
    void = " void" if found["void"] else ""
    return (
        f"{shape.name:32} {found['chunks']:5} {found['t_lb']:7.2f} {last:>7} {eta:>6} {found['alpha']:7.4f} "
        f"{found['alpha_interface']:6.3f} {found['cpu_busy']:5.0%}{void}"
    )


if __name__ == "__main__":
    sys.exit(main())

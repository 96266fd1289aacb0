"""`python -m loadtest.bench [--origin URL] [--pulls] [--rivals]`: disk, loopback, origin and hash in one report.

The parts are `p2pcache bench`'s, so that both say the same of one machine. With `--pulls` two real agents
move a model over loopback as well (`loadtest.loopback.__main__`), and its rate stands beside what its slowest part
could do: the rest is what p2pcache itself costs. With `--rivals` nothing but a contest on one storage is held:
p2pcache, s5cmd, awscli and boto3's transfer manager push and pull the same model in turns (`contest.py`). Without
`--origin` the storage is SeaweedFS on loopback.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.bench import contest
from loadtest.kit.flags import count, out_file, size
from p2pcache.cli.commands.cluster.bench import lines, measure
from p2pcache.core.units import format_bytes, parse_size

PULL_MIB = 512
TURNS = 3


def pulls(folder: Path) -> dict[str, Any]:
    """Medians of a few pulls between two agents, from a process of its own (it leaves no warm pages)."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".json") as out:
        subprocess.run(
            [sys.executable, "-m", "loadtest.loopback", "--size-mib", str(PULL_MIB), "--pairs", str(TURNS),
             "--dir", str(folder), "--json", out.name],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        data: dict[str, Any] = json.loads(Path(out.name).read_bytes())
    return data


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write JSON. Exit code: of the first part that couldn't be measured."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--origin", default="", metavar="URL", help="a storage that has models; s3:// or file://"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured"
    )
    parser.add_argument(
        "--pulls", action="store_true", help="two real agents, too: a minute and 2 GB of disk"
    )
    parser.add_argument("--json", type=out_file, help="also write the figures to this file")
    rivals = parser.add_argument_group("the contest")
    rivals.add_argument("--rivals", action="store_true", help="beside other programs, in turns")
    rivals.add_argument("--size", type=size, default="2GiB", help="of the model")
    rivals.add_argument("--files", type=count, default=2, help="that the model is cut into")
    rivals.add_argument("--turns", type=count, default=3)
    rivals.add_argument("--only", nargs="+", default=(), metavar="NAME",
                        help="p2pcache, p2pcache-agent, s5cmd, awscli, boto3")  # fmt: skip
    options = parser.parse_args(argv)
    if options.rivals:
        return _contest(options)
    figures, code = measure(options.dir.absolute(), options.origin, note=lambda _: None)
    for line in lines(figures):
        print(line)
    if options.pulls:
        figures["pulls"] = found = pulls(options.dir)
        print(f"{'pulls':9}{_pulled(found)}")
    load = os.getloadavg()[0]
    print(
        f"{'load':9}{load:.1f} at the end, on {os.cpu_count()} cores: above them others took part"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(figures | {"load": {"average": load}}, indent=1) + "\n")
    return code


def _contest(options: argparse.Namespace) -> int:
    sizes = parse_size(options.size), options.files
    found = contest.hold(options.dir, options.origin, sizes, options.turns, options.only)
    for line in contest.lines(found):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps({"rivals": found}, indent=1) + "\n")
    return 0


def _pulled(found: dict[str, Any]) -> str:
    """One agent to another, into an empty cache, and into one that has just removed a model."""
    told = [
        f"{format_bytes(found[name]['gb_per_s'] * 1e9)}/s ({name}) at "
        f"{found[name]['cpu_s_per_gb']:.2f} CPU-s per GB"
        for name in ("fresh", "again") if name in found
    ]  # fmt: skip
    return "; ".join(told) + ", one agent to another over loopback"


if __name__ == "__main__":
    sys.exit(main())

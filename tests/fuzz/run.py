"""All doors in turn until the time is over: `make fuzz MINUTES=60`.

    python -m tests.fuzz.run --minutes 60 [--seed 1] [--door NAME]

A failure prints the smallest input that shows it, and the seed that finds it again, and ends with 1.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.daemons import DAEMONS
from tests.fuzz.doors import PURE, Door

DOORS = [*PURE, *DAEMONS]
PURE_ROUND, DAEMON_ROUND = 2000, 200  # inputs of one door before the next one


def knock(door: Door, inputs: int, dice: int) -> int:
    """Try one door with so many inputs; return how many were tried. A failure raises."""
    tried = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, door.open(Path(folder)) as check:

        @seed(dice)
        @settings(
            max_examples=inputs, deadline=None, database=None, print_blob=True,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
        )  # fmt: skip
        @given(door.inputs)
        def one(data: Any) -> None:
            nonlocal tried
            tried += 1
            check(data)

        one()
    return tried


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--door", default="", help="only doors with this in their name")
    asked = parser.parse_args()
    doors = [door for door in DOORS if asked.door in door.name]
    tried = dict.fromkeys((door.name for door in doors), 0)
    end, dice, at = time.monotonic() + 60 * asked.minutes, asked.seed, 0
    while doors and time.monotonic() < end:
        door = doors[at % len(doors)]
        inputs = DAEMON_ROUND if door in DAEMONS else PURE_ROUND
        try:
            tried[door.name] += knock(door, inputs, dice)
        except Exception as error:  # noqa: BLE001 - whatever it is, the door has failed
            notes = "\n".join(getattr(error, "__notes__", []))
            sys.stdout.write(
                f"{door.name} fails with --seed {dice} --door {door.name!r}: {error!r}\n{notes}\n"
            )
            return 1
        at, dice = at + 1, dice + 1
    for name, count in tried.items():
        sys.stdout.write(f"{count:9,} inputs  {name}\n")
    return 0 if doors else 2


if __name__ == "__main__":
    sys.exit(main())

"""What a daemon holds at rest, and whether that grows: file descriptors, threads, tasks, memory, disk."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.kit.cluster import Agent
from p2pcache.errors import P2PCacheError

WARM_UP = 2  # samples: pools fill, code is imported, arenas grow
LEAST = 3  # samples after it, for a verdict
# From the first to the last. Idle threads of the pools have ended at rest; some of libraries' pools stay.
GROWTH = {"fds": 6.0, "threads": 12.0, "tasks": 6.0, "anon_mib": 24.0}
DATABASE = "agent.db"
METRICS_S = 20.0
_TASKS = re.compile(r"^p2pcache_agent_tasks (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rest:
    """One process at rest."""

    pid: int
    minute: float
    fds: int
    threads: int
    tasks: int
    anon_mib: float


def sample(agent: Agent, minute: float) -> Rest:
    """What the agent holds now."""
    process = Path(f"/proc/{agent.pid}")
    found = _TASKS.search(_metrics(agent))
    return Rest(
        agent.pid, minute, len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())), int(float(found[1])) if found else 0,
        agent.anon_bytes() / (1 << 20),
    )  # fmt: skip


def _metrics(agent: Agent) -> str:
    connection = agent.client.connection()
    connection.timeout = METRICS_S
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def growth(samples: Sequence[Rest]) -> dict[str, float]:
    """How much one process grew after its warm-up, along the line through its samples; empty: too few."""
    if len(samples) < WARM_UP + LEAST:
        return {}
    rest = samples[WARM_UP:]
    minutes = [each.minute for each in rest]
    span = minutes[-1] - minutes[0]
    return {
        name: statistics.linear_regression(minutes, [getattr(e, name) for e in rest]).slope * span
        for name in GROWTH
    }


def leaks(samples: Sequence[Rest]) -> list[str]:
    """What grew by more than it may."""
    return [
        f"{name} grew by {value:.1f} in {samples[-1].minute - samples[WARM_UP].minute:.0f} minutes"
        for name, value in growth(samples).items()
        if value > GROWTH[name]
    ]


def disk_bytes(folder: Path) -> int:
    """Blocks of all files below `folder` but the database, whose write-ahead log keeps up to 4 MiB.

    What vanishes meanwhile doesn't count.
    """
    total = 0
    seen = set()
    for path in folder.rglob("*"):
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        if info.st_ino not in seen and not path.name.startswith(DATABASE):
            seen.add(info.st_ino)
            total += info.st_blocks * 512
    return total


def held_deleted(agent: Agent) -> list[str]:
    """Files of its cache that the agent still holds open though they are deleted: lost space."""
    found = []
    for link in Path(f"/proc/{agent.pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.endswith(" (deleted)") and str(agent.cache_dir) in target:
            found.append(target)
    return found


def quiet(agent: Agent) -> bool:
    """Whether nothing runs there and nothing is cached."""
    try:
        return not agent.client.models() and not agent.client.pulls()
    except P2PCacheError:
        return False

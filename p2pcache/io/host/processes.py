"""Which pod, container or service a process belongs to, as its control group says."""

import re
from pathlib import Path

PROC = Path("/proc")
# kubepods-burstable-pod1234_ab.slice with systemd, /kubepods/burstable/pod1234-ab with cgroupfs
_POD = re.compile(r"kubepods.*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)
_UNIT = re.compile(r"/([^/\n]+\.service)(?=/|$)", re.MULTILINE)
SHORT_ID = 12  # digits of a container's id, as crictl and docker show it


def owner_fields(pid: int, proc: Path = PROC) -> dict[str, str]:
    """`pod` (its UID) and `container`, or `unit`, of a process; {}: it is in none, or nothing is known of it."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace") if pid > 0 else ""
    except OSError:
        return {}
    return fields_of(groups)


def fields_of(groups: str) -> dict[str, str]:
    """The same for the text of a `/proc/PID/cgroup`."""
    found = {}
    if pod := _POD.search(groups):
        found["pod"] = pod[1].replace("_", "-")
    if containers := _CONTAINER.findall(groups):
        found["container"] = containers[-1][:SHORT_ID]
    elif not pod and (unit := _UNIT.search(groups)):
        found["unit"] = unit[1]
    return found


def name_of(pid: int, proc: Path = PROC) -> str:
    """A process for people: `python3 (pid 77, pod 12ab..)`."""
    try:
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "a process"
    owner = "".join(f", {key} {value}" for key, value in owner_fields(pid, proc).items())
    return f"{name} (pid {pid}{owner})"

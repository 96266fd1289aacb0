"""Whether a process still lives: its number alone doesn't say, for numbers are used again."""

from pathlib import Path

PROC = Path("/proc")
_START = (
    19  # field 22 of /proc/PID/stat, counted behind the name, which may hold spaces and brackets
)


def start_of(pid: int) -> str:
    """When a process started, in ticks since the boot; "": there is none of that number, or it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[_START]

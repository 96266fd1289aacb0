"""How busy this host is: stalls (PSI) and links, from the kernel's counters. Linux only."""

import os
import time
from pathlib import Path

from p2pcache.core.host.governor import Sample
from p2pcache.errors import UsageError

_KINDS = ("cpu", "io", "memory")
_SETTLE_S = 0.2  # a shorter time between samples measures the clock more than the host
_CGROUPS = Path("/sys/fs/cgroup")


class Pressure:
    """Differences of the kernel's counters between two samples. Used by one thread at a time."""

    def __init__(
        self, *, cgroup: str = "", link_bytes_per_s: int = 0,
        proc: Path = Path("/proc"), sys: Path = Path("/sys"),
    ) -> None:  # fmt: skip
        """Nothing is read yet.

        Args:
            cgroup: path of the cgroup (below /sys/fs/cgroup) whose stalls count; "": the host's.
            link_bytes_per_s: what the link carries; 0: ask the network interfaces.
            proc: where procfs is mounted.
            sys: where sysfs is mounted.

        Raises:
            UsageError: there is no such cgroup.
        """
        self._stalls = {kind: proc / "pressure" / kind for kind in _KINDS}
        if cgroup:
            self._stalls = _of_cgroup(cgroup)
        self._links = Path(os.fspath(proc)) / "net" / "dev"
        self._interfaces = sys / "class" / "net"
        self._link_rate = float(link_bytes_per_s)
        self._at = 0.0
        self._stalled: dict[str, float] = {}  # seconds since boot
        self._moved: dict[str, tuple[int, int]] = {}  # interface -> bytes in, out
        self.missing: list[str] = []  # figures that this host doesn't have, for people

    def sample(self) -> Sample:
        """Pressure since the last sample; the first one is empty. Blocks for well under a millisecond."""
        now = time.monotonic()
        passed = now - self._at
        stalled = {k: s for k, path in self._stalls.items() if (s := _stalled_s(path)) is not None}
        moved = _moved(self._links)
        rates = {name: rate for name in moved if (rate := self._rate(name)) > 0}
        self._tell_missing(stalled, rates)
        shares: dict[str, float] = {}
        link: float | None = None
        if self._at and passed >= _SETTLE_S:
            for kind, seconds in stalled.items():
                if kind in self._stalled:
                    shares[kind] = min(1.0, max(0.0, (seconds - self._stalled[kind]) / passed))
            uses = [
                _use(moved[n], self._moved[n], passed) / r
                for n, r in rates.items()
                if n in self._moved
            ]
            link = max(uses, default=None)
        if not self._at or passed >= _SETTLE_S:
            self._at, self._stalled, self._moved = now, stalled, moved
        return Sample(
            shares.get("cpu"), shares.get("io"), shares.get("memory"), link,
            link_rate=max(rates.values(), default=0.0),
        )  # fmt: skip

    def link_bytes_s(self) -> int:
        """What the host's quickest link carries; 0: not known. Blocks as `sample`."""
        return round(max((self._rate(name) for name in _moved(self._links)), default=0.0))

    def _rate(self, name: str) -> float:
        """Bytes per second that an interface carries; 0: not a link, or unknown."""
        if name == "lo":
            return 0.0
        if self._link_rate:
            return self._link_rate
        folder = self._interfaces / name
        if not (folder / "device").exists():
            return 0.0  # a virtual one names a rate, but not the one that it has
        try:
            return max(0, int((folder / "speed").read_text())) * 1e6 / 8
        except (OSError, ValueError):
            return 0.0  # down, or a driver that doesn't know

    def _tell_missing(self, stalled: dict[str, float], rates: dict[str, float]) -> None:
        self.missing = []
        if len(stalled) < len(_KINDS):
            lacks = ", ".join(kind for kind in _KINDS if kind not in stalled)
            self.missing.append(f"no stall figures ({lacks}): the kernel runs without PSI (psi=1)")
        if not rates:
            self.missing.append("the link's rate is unknown: set link_bytes_per_s")


def _of_cgroup(name: str) -> dict[str, Path]:
    folder = (_CGROUPS / name.lstrip("/")).resolve()
    if not folder.is_relative_to(_CGROUPS) or not folder.is_dir():
        raise UsageError(
            f"governor_cgroup {name}: there is no such directory below {_CGROUPS}; "
            "`systemctl show -p ControlGroup UNIT` tells a service's"
        )
    return {kind: folder / f"{kind}.pressure" for kind in _KINDS}


def _stalled_s(path: Path) -> float | None:
    """The total of the `some` line; None: no such figure here."""
    try:
        text = path.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            return int(words[-1].removeprefix("total=")) / 1e6
    return None


def _moved(path: Path) -> dict[str, tuple[int, int]]:
    try:
        lines = path.read_text().splitlines()[2:]
    except OSError:
        return {}
    moved = {}
    for line in lines:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if len(fields) >= 9:
            moved[name.strip()] = (int(fields[0]), int(fields[8]))
    return moved


def _use(now: tuple[int, int], before: tuple[int, int], passed: float) -> float:
    """Bytes per second of the busier direction."""
    return max(0, now[0] - before[0], now[1] - before[1]) / passed

"""The governor with the kernel's own figures: an engine's real cgroup v2, beside another that keeps the CPUs busy."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.io.host import pressure
from p2pcache.io.host.pressure import Pressure
from tests.agent.kit import agent

LOOK_S = 1.0
MINE = f"p2pc-{os.getpid()}"  # all mounts of cgroup v2 show one hierarchy
ENGINE, OTHER = f"{MINE}-engine", f"{MINE}-other"

pytestmark = pytest.mark.slow


class Cgroups:
    """Two cgroups of our own, and processes in them that do nothing but compute."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._busy: list[subprocess.Popen[bytes]] = []

    def burn(self, name: str) -> None:
        """More processes than CPUs: one of them always waits."""
        for _ in range((os.cpu_count() or 1) + 2):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self._busy.append(process)
            (self.root / name / "cgroup.procs").write_text(str(process.pid))

    def calm(self) -> None:
        for process in self._busy:
            process.kill()
            process.wait()
        self._busy.clear()


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cgroups]:
    root = tmp_path / "cgroup"
    root.mkdir()
    mount = ["mount", "-t", "cgroup2", "none", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root, and a kernel that mounts cgroup v2")
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", str(root)], check=True)
        for name in (ENGINE, OTHER):
            (root / name).mkdir()
            stack.callback((root / name).rmdir)
        if not (root / ENGINE / "cpu.pressure").exists():
            pytest.skip("needs a kernel with PSI (psi=1)")
        groups = Cgroups(root)
        stack.callback(groups.calm)
        monkeypatch.setattr(pressure, "_CGROUPS", root)
        yield groups


def cpu_stalls(cgroup: str) -> float:
    looker = Pressure(cgroup=cgroup)
    looker.sample()
    time.sleep(LOOK_S)
    share = looker.sample().cpu
    assert share is not None
    return share


def test_only_the_stalls_of_the_named_cgroup_count(cgroups: Cgroups) -> None:
    assert cpu_stalls(ENGINE) == 0
    cgroups.burn(OTHER)
    time.sleep(LOOK_S)
    assert cpu_stalls(OTHER) > 0.5
    assert cpu_stalls(f"/{ENGINE}") == 0


async def test_an_agent_gives_way_to_the_engines_cgroup_alone(
    cgroups: Cgroups, tmp_path: Path
) -> None:
    async with agent(tmp_path, governor="on", governor_cgroup=ENGINE) as app:
        cgroups.burn(OTHER)
        await asyncio.sleep(3 * LOOK_S)
        assert app.governor.limits.share == 1, "the host is busy, the engine isn't"
        cgroups.calm()
        cgroups.burn(ENGINE)
        async with asyncio.timeout(30):
            while app.governor.limits.share > 0.5:
                await asyncio.sleep(0.1)
        assert app.governor.limits.cause == "cpu"
        cgroups.calm()
        async with asyncio.timeout(60):
            while app.governor.limits.share < 1:
                await asyncio.sleep(0.1)

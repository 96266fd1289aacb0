"""The systemd units: valid, hardened, and about what the code does. Nothing is installed here."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pcache.agent.settings import DEFAULT_CLIENT_SOCKET, DEFAULT_SOCKET, AgentSettings

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
WORST = {"agent": 3.0, "tracker": 3.0}


def tool(name: str) -> str:
    """Path of a tool; the test is skipped where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not here: apt-get install systemd")
    return path


def keys(name: str) -> dict[str, list[str]]:
    """All settings of a unit file, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


@pytest.mark.parametrize("name", ["agent", "tracker"])
def test_systemd_finds_no_fault(name: str, tmp_path: Path) -> None:
    """With the program at another place, since /opt/p2pcache isn't here."""
    program = tmp_path / "p2pcache"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    unit = tmp_path / f"p2pcache-{name}.service"
    text = (UNITS / unit.name).read_text()
    assert "ExecStart=/opt/p2pcache/bin/p2pcache " in text
    text = text.replace("/opt/p2pcache/bin/p2pcache", str(program))
    unit.write_text(text)
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["agent", "tracker"])
def test_systemd_rates_the_hardening(name: str) -> None:
    unit = UNITS / f"p2pcache-{name}.service"
    done = subprocess.run(
        [tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    rating = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert rating is not None, done.stderr
    assert float(rating[1]) <= WORST[name]


def test_the_agent_unit_fits_the_agent() -> None:
    unit = keys("p2pcache-agent.service")
    assert unit["Type"] == ["notify"]
    folders = {f"/run/{name}" for name in unit["RuntimeDirectory"][0].split()}
    assert {str(Path(p).parent) for p in (DEFAULT_SOCKET, DEFAULT_CLIENT_SOCKET)} == folders
    assert AgentSettings().cache_dir == f"/var/lib/{unit['StateDirectory'][0]}"
    assert int(unit["TimeoutStopSec"][0].rstrip("s")) > 3 * AgentSettings().shutdown_s
    assert "PrivateUsers" not in unit  # the API asks the kernel who is calling


def test_both_units_come_back_and_are_watched() -> None:
    for name in ("agent", "tracker"):
        unit = keys(f"p2pcache-{name}.service")
        assert unit["Restart"] == ["always"]
        assert unit["StartLimitIntervalSec"] == ["0"]
        for key in (
            "WatchdogSec",
            "MemoryHigh",
            "CPUWeight",
            "IOWeight",
            "LimitNOFILE",
        ):
            assert key in unit


def test_users_and_folders(tmp_path: Path) -> None:
    """Applied to an empty tree by systemd's own tools."""
    (tmp_path / "etc").mkdir()
    users = UNITS / "p2pcache-sysusers.conf"
    subprocess.run(
        [tool("systemd-sysusers"), f"--root={tmp_path}", str(users)], check=True, timeout=30
    )
    passwd = (tmp_path / "etc/passwd").read_text()
    assert re.search(r"(?m)^p2pcache:.*:/var/lib/p2pcache:/usr/sbin/nologin$", passwd)
    subprocess.run(
        [tool("systemd-tmpfiles"), f"--root={tmp_path}", "--create", str(UNITS / "p2pcache-tmpfiles.conf")],
        check=True, timeout=30,
    )  # fmt: skip
    for folder in ("run/p2pcache", "run/p2pcache/client"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o755


def test_the_credentials_sample_sets_nothing() -> None:
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.read_string("[x]\n" + (UNITS / "credentials.env.sample").read_text())
    assert not parser["x"]

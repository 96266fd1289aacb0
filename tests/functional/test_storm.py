"""One small storm through the public command: shaped links, verdicts, nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.kit.netns import NETNS_DIR, PREFIX

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2"
)


def other_code(folder: Path) -> Path:
    """A checkout whose agents say in their logs that they are others."""
    shutil.copytree(Path(__file__).parents[2] / "p2pcache", folder / "p2pcache")
    main = folder / "p2pcache/cli/main.py"
    main.write_text('import sys\n\nprint("other code", file=sys.stderr)\n' + main.read_text())
    return folder


@needs_root
@pytest.mark.netns
@pytest.mark.timeout(300)
def test_a_small_storm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.storm", "--nodes", "4", "--rate", "100mbit",
               "--size", "16MiB", "--json", str(tmp_path / "s.json"), "--logs", str(tmp_path),
               "--other-code", str(other_code(tmp_path / "other"))]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    data = json.loads((tmp_path / "s.json").read_text())
    assert data["alpha"] <= 1.02
    assert "other code" in (tmp_path / "n1.log").read_text()
    assert "other code" not in (tmp_path / "n0.log").read_text()
    assert all(spent > 0 for spent in data["cpu_s_per_gb_other"])
    assert data["eta"] > 0  # how much is for storms on idle machines to say
    assert all(node["equal"] for node in data["nodes"])
    assert {"eta", "eta_median", "alpha", "t_last", "t_lb", "cpu_busy", "rivals"} <= data.keys()
    if NETNS_DIR.is_dir():
        assert not list(NETNS_DIR.glob(f"{PREFIX}-{process.pid}-*"))


@needs_root
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    find_spec("libtorrent") is None or shutil.which("curl") is None,
    reason="needs libtorrent and curl",
)
def test_rivals_get_the_same_files_on_the_same_links(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.storm", "--nodes", "3", "--rate", "100mbit",
               "--size", "8MiB", "--json", str(tmp_path / "s.json"),
               "--rival", "libtorrent", "--rival", "libtorrent-leased", "--rival", "http"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "s.json").read_text())
    rivals = data["rivals"]
    assert list(rivals) == ["libtorrent", "libtorrent-leased", "http"]
    for name, rival in rivals.items():
        assert not rival["failure"], rival
        assert rival["size_bytes"] == data["size_bytes"]
        assert rival["eta"] > 0  # above 1, too: the links were measured while other work ran
        assert name in done.stdout
    assert rivals["libtorrent-leased"]["alpha_interface"] < 1.2  # each piece once, and headers
    assert rivals["http"]["alpha_interface"] > 2.9


def test_a_rival_that_is_not_installed_is_refused_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.storm", "--rival", "aria2"],
        capture_output=True, text=True, env={**os.environ, "PATH": "/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "aria2c" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_explains_every_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.storm", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    for fault in ("kill-node", "corrupt-origin", "split", "libtorrent-leased", "aria2"):
        assert fault in done.stdout


def test_another_code_must_be_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.storm", "--other-code", str(tmp_path)], capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"storm: --other-code: {tmp_path} has no p2pcache\n"


def test_nonsense_is_refused_before_anything_is_built() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.storm", "--rate", "fast"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "error: argument --rate: not a rate: 'fast'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr

"""The harness's own promises about processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.kit.cluster import clean_environ, free_ports
from loadtest.kit.daemons import Daemon, StartError, wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def daemon(tmp_path: Path, command: list[str]) -> Daemon:
    log = tmp_path / "d.log"
    return Daemon(
        "d", command, log, ready=lambda: "up" in log.read_text() if log.exists() else False
    )


def test_start_wait_stop(tmp_path: Path) -> None:
    one = daemon(tmp_path, SLEEP)
    one.start()
    assert one.alive
    assert one.anon_bytes() > 0
    assert one.cpu_s() >= 0
    assert one.stop() == -signal.SIGTERM
    assert not one.alive


def test_who_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    stubborn = daemon(tmp_path, [sys.executable, "-c", code])
    stubborn.start()
    begin = time.monotonic()
    assert stubborn.stop(limit_s=0.3) == -signal.SIGKILL
    assert time.monotonic() - begin < 60


def test_a_daemon_that_ends_says_its_log(tmp_path: Path) -> None:
    broken = daemon(tmp_path, [sys.executable, "-c", "import sys; sys.exit('the disk is on fire')"])
    with pytest.raises(StartError, match="the disk is on fire"):
        broken.start()


def test_children_die_with_a_killed_harness(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from loadtest.kit.daemons import Daemon\n"
        f"d = Daemon('d', ['sleep', '600'], Path({str(tmp_path / 'd.log')!r}), ready=lambda: True)\n"
        "d.start(); print(d.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    comm = Path(f"/proc/{pid}/comm")
    wait_until(lambda: comm.read_text() == "sleep\n", 30)  # until then its leash isn't tied
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"

    wait_until(gone, 30)


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PCACHE_ORIGIN", "s3://elsewhere")
    monkeypatch.setenv("AWS_PROFILE", "production")
    environ = clean_environ(tmp_path)
    assert "P2PCACHE_ORIGIN" not in environ
    assert "AWS_PROFILE" not in environ


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20

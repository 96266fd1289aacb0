"""Both units under a real systemd: start, rights, restart, watchdog, stop."""

from collections.abc import Iterator

import pytest

from tests.functional.box import Box, need_box

INSTALL = """
set -e
cd /opt/p2pcache/src/systemd
install -m 644 p2pcache-agent.service p2pcache-tracker.service /etc/systemd/system/
install -D -m 644 p2pcache-sysusers.conf /etc/sysusers.d/p2pcache.conf
install -D -m 644 p2pcache-tmpfiles.conf /etc/tmpfiles.d/p2pcache.conf
systemd-sysusers p2pcache.conf && systemd-tmpfiles --create p2pcache.conf
install -d /etc/p2pcache && (umask 077; head -c 32 /dev/urandom | base64 > /etc/p2pcache/cluster.key)
chgrp p2pcache /etc/p2pcache/cluster.key && chmod 640 /etc/p2pcache/cluster.key
cat > /etc/p2pcache/config.toml <<END
[tracker]
origin = "file:///srv/models"
cluster_key_file = "/etc/p2pcache/cluster.key"
[agent]
min_free_bytes = "64MiB"
tracker = "http://127.0.0.1:7400"
cluster_key_file = "/etc/p2pcache/cluster.key"
END
install -d -o p2pcache -g p2pcache /srv/models
for unit in agent tracker; do
    install -d /etc/systemd/system/p2pcache-$unit.service.d
    printf '[Service]\\nReadWritePaths=/srv/models\\nRestartSec=1s\\nWatchdogSec=4s\\n' \\
        > /etc/systemd/system/p2pcache-$unit.service.d/test.conf
done
useradd --create-home guest
mkdir /srv/model && head -c 3000000 /dev/urandom > /srv/model/weights.bin
systemctl daemon-reload
systemctl start p2pcache-tracker p2pcache-agent
"""
AGENT, TRACKER = "p2pcache-agent", "p2pcache-tracker"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    need_box()
    with Box(tmp_path_factory.mktemp("boot")) as box:
        box.run(INSTALL)  # `systemctl start` ends when the daemons have said READY
        yield box


def test_they_serve_and_say_so(box: Box) -> None:
    box.until(AGENT, "StatusText", "ready: 0 models, 0 pulls running")
    box.until(TRACKER, "StatusText", "ready: 1 members")
    sockets = box.run(
        "stat -c '%a %U %G %n' /run/p2pcache/agent.sock /run/p2pcache/client/agent.sock"
    )
    assert sockets.splitlines() == [
        "660 p2pcache p2pcache /run/p2pcache/agent.sock",
        "666 p2pcache p2pcache /run/p2pcache/client/agent.sock",
    ]


def test_they_are_locked_in(box: Box) -> None:
    for unit in (AGENT, TRACKER):
        status = box.run(f"cat /proc/{box.show(unit, 'MainPID')}/status")
        facts = dict(line.split(":", 1) for line in status.splitlines())
        assert facts["CapEff"].strip() == "0" * 16
        assert (facts["NoNewPrivs"].strip(), facts["Seccomp"].strip()) == ("1", "2")
        assert facts["Uid"].split()[0] != "0"


def test_each_socket_has_its_callers(box: Box) -> None:
    box.run("p2pcache push /srv/model team/m:v1")
    path = box.run("p2pcache pull --quiet team/m:v1", user="guest")
    box.run(f"cmp {path}/weights.bin /srv/model/weights.bin", user="guest")
    box.run(f"touch {path}/weights.bin", user="guest", code=1)
    denied = "P2PCACHE_AGENT=unix:///run/p2pcache/agent.sock p2pcache rm team/m:v1"
    box.run(denied, user="guest", code=4)
    box.run("p2pcache rm team/m:v1", user="guest", code=4)  # the client socket is for pulls


def test_the_doctor_in_the_agents_place(box: Box) -> None:
    box.run("systemd-run --quiet --pipe --wait --uid=p2pcache /opt/p2pcache/bin/p2pcache doctor")
    box.run("p2pcache doctor --tracker http://127.0.0.1:1", code=8)


def test_a_restart_keeps_the_folder_that_containers_mounted(box: Box) -> None:
    before = box.run("stat -c %i /run/p2pcache/client")
    box.run(f"systemctl restart {AGENT}")
    assert box.run("stat -c %i /run/p2pcache/client") == before
    assert box.show(AGENT, "Result") == "success"


def test_the_dead_come_back(box: Box) -> None:
    restarts = int(box.show(AGENT, "NRestarts"))
    box.signal(AGENT, "KILL")
    box.until(AGENT, "NRestarts", str(restarts + 1))
    box.until(AGENT, "SubState", "running")


def test_the_hung_are_restarted_by_the_watchdog(box: Box) -> None:
    """Stopped, they feed no watchdog; systemd wakes and ends them, and their stacks are in the journal."""
    restarts = int(box.show(AGENT, "NRestarts"))
    box.until(AGENT, "SubState", "running")
    box.signal(AGENT, "STOP")
    box.until(AGENT, "NRestarts", str(restarts + 1))
    box.until(AGENT, "SubState", "running")
    journal = box.run(f"journalctl --no-pager -u {AGENT}")
    assert "Watchdog timeout" in journal
    assert "most recent call first" in journal


def test_an_end_in_order(box: Box) -> None:
    box.run(f"systemctl stop {AGENT} {TRACKER}")
    for unit in (AGENT, TRACKER):
        assert (box.show(unit, "Result"), box.show(unit, "ExecMainStatus")) == ("success", "0")
    assert box.run("ls -A /run/p2pcache/client") == ""

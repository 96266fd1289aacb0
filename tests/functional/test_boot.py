"""Both units under a real systemd, set up by docs/edge.md as it is written: start to removal."""

import re
from collections.abc import Iterator

import pytest

from tests.functional.box import ROOT, Box, need_box

GUIDE = (ROOT / "docs/edge.md").read_text()
NETWORK = """
ip link add edge0 type veth peer name edge1
ip addr add 198.51.100.7/24 dev edge0
ip link set edge0 up && ip link set edge1 up
"""
# What the tests need beyond the guide: quicker ends, little space (the box lives in memory), a guest.
MORE = """
for unit in agent tracker; do
    printf '[Service]\\nRestartSec=1s\\nWatchdogSec=4s\\n' \\
        > /etc/systemd/system/p2pcache-$unit.service.d/test.conf
done
sed -i '/^\\[agent\\]/a min_free_bytes = "64MiB"' /etc/p2pcache/config.toml
systemctl daemon-reload
useradd --create-home guest
mkdir /srv/model && head -c 3000000 /dev/urandom > /srv/model/weights.bin
"""


def blocks(*titles: str) -> list[str]:
    """The guide's commands under these headings, but for those that fetch from the network."""
    found = []
    for title in titles:
        section = GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]
        found += re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [f"set -e; cd /opt/p2pcache/src; {text}" for text in found if "pip install" not in text]


AGENT, TRACKER = "p2pcache-agent", "p2pcache-tracker"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    need_box()
    with Box(tmp_path_factory.mktemp("boot")) as box:
        box.run(NETWORK)
        for commands in blocks("1. Install", "2. The cluster's key", "3. Settings"):
            box.run(commands)
        box.run(MORE)
        for commands in blocks(
            "4. Start"
        ):  # `systemctl enable --now` ends when they have said READY
            box.run(commands)
        box.run("p2pcache rm team/demo:v1")
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
    (commands,) = (text for text in blocks("4. Start") if "doctor" in text)
    report = box.run(commands)
    assert "ready" in report
    assert "0 failed" in report
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


def test_an_upgrade_and_another_disk(box: Box) -> None:
    for commands in blocks("A cache on another disk", "Upgrade"):
        box.run(commands)
    assert "/nvme/p2pcache" in box.run("p2pcache status")


def test_an_end_in_order(box: Box) -> None:
    box.run(f"systemctl stop {AGENT} {TRACKER}")
    for unit in (AGENT, TRACKER):
        assert (box.show(unit, "Result"), box.show(unit, "ExecMainStatus")) == ("success", "0")
    assert box.run("ls -A /run/p2pcache/client") == ""


def test_nothing_stays(box: Box) -> None:
    """The program itself is this machine's; the box can't remove it."""
    (commands,) = blocks("Remove")
    box.run(commands.replace("rm -rf /opt/p2pcache ", "rm -rf "))
    assert box.run("systemctl list-units --all --no-legend 'p2pcache*'") == ""
    assert box.run("ls -d /run/p2pcache /var/lib/p2pcache* /etc/p2pcache", code=2) != ""

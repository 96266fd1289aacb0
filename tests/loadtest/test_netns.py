"""Namespaces: hosts that talk at the shaped rate, that can be cut apart, and that never stay behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from loadtest.kit.daemons import wait_until
from loadtest.kit.goodput import goodput
from loadtest.kit.netns import (
    LOCK_DIR,
    NETNS_DIR,
    PREFIX,
    Fabric,
    FabricError,
    Host,
    command_of,
    in_namespace,
    remove_leftovers,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
pytestmark = [pytest.mark.netns]
RATE = 12.5e6  # 100 Mbit/s


def ours(pid: int) -> list[str]:
    return [p.name for p in NETNS_DIR.glob(f"{PREFIX}-{pid}-*")]


def reaches(one: Host, other: Host, listen: Callable[[], socket.socket]) -> bool:
    listener = in_namespace(other, listen)
    try:
        connect = partial(socket.create_connection, listener.getsockname(), 2.0)
        in_namespace(one, connect).close()
    except OSError:
        return False
    finally:
        listener.close()
    return True


def carried(one: Host, other: Host, least: float) -> float:
    """Bytes per second; measured again where a busy machine, not the link, was the limit."""
    best = 0.0
    for _ in range(8):
        best = max(best, goodput(one, [other], measure_s=1.0))
        if best > least:
            break
    return best


@needs_root
def test_links_carry_what_they_are_shaped_to() -> None:
    with Fabric() as fabric:
        hosts = [fabric.add(f"n{n}", rate_bytes_s=RATE) for n in range(2)]
        before = fabric.sent_bytes(hosts[0])
        rate = carried(hosts[0], hosts[1], least=0.85 * RATE)
        assert 0.85 * RATE < rate < 1.01 * RATE
        assert fabric.sent_bytes(hosts[0]) - before > rate
        fabric.shape(hosts[1], RATE / 4)
        assert goodput(hosts[0], [hosts[1]], measure_s=1.0) < 0.3 * RATE


@needs_root
def test_what_leaves_a_rack_goes_through_its_uplink_and_is_counted() -> None:
    with Fabric() as fabric:
        racks = [fabric.add_rack(RATE / 4) for _ in range(2)]
        first, mate, other = (
            fabric.add(f"n{n}", rate_bytes_s=RATE, rack=rack)
            for n, rack in enumerate((racks[0], racks[0], racks[1]))
        )
        assert carried(first, mate, least=0.8 * RATE) > 0.8 * RATE
        inside = fabric.left_racks_bytes()
        assert inside < RATE / 20
        assert goodput(first, [other], measure_s=0.5) < 0.3 * RATE
        assert fabric.left_racks_bytes() - inside > RATE / 16


@needs_root
def test_a_cut_separates_groups_and_heals() -> None:
    with Fabric() as fabric:
        left, right, core = (fabric.add(n, group=g) for n, g in (("l", 1), ("r", 2), ("c", 0)))

        def talk(one: Host, other: Host) -> bool:
            return reaches(one, other, lambda: socket.create_server((other.address, 0)))

        wait_until(lambda: talk(left, right), 30)  # the links come up on their own time
        fabric.cut(1, 2)
        before = fabric.sent_again(left)
        assert not talk(left, right)
        assert fabric.sent_again(left) > before
        assert not fabric.sent_again(core)
        assert not talk(right, left)
        assert talk(left, core)
        fabric.mend(1, 2)
        wait_until(lambda: talk(right, left), 30)


@needs_root
def test_nothing_stays_after_an_exception() -> None:
    with pytest.raises(RuntimeError), Fabric() as fabric:  # noqa: PT012 - the block is what is tested
        host = fabric.add("n0")
        sleeper = subprocess.Popen([*host.prefix, "sleep", "600"])
        assert ours(os.getpid())
        raise RuntimeError
    assert sleeper.wait(30) == -signal.SIGKILL
    assert not ours(os.getpid())
    assert not fabric.work.exists()


@needs_root
def test_who_was_about_to_enter_a_namespace_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "netns").write_text("import time; time.sleep(600)")
    with Fabric() as fabric:
        host = fabric.add("n0")
        # As `ip` looks until it is there: its name and arguments, and our namespace.
        entering = subprocess.Popen(
            [*host.prefix, "sleep", "600"], executable=sys.executable, cwd=tmp_path
        )
    assert entering.wait(30) == -signal.SIGKILL


def test_a_process_that_is_being_replaced_is_known_by_its_new_command(tmp_path: Path) -> None:
    """Between two programs a process has none of its arguments, though `Popen` has returned."""
    (tmp_path / "netns").write_text("import time; time.sleep(600)")
    command = ["ip", "netns", "exec", "nobody-s", "sleep", "600"]
    for _ in range(100):  # seen 11 times of 400
        with subprocess.Popen(command, executable=sys.executable, cwd=tmp_path) as entering:
            found = command_of(psutil.Process(entering.pid))
            entering.kill()
        assert found == command


def test_who_has_no_program_has_no_command() -> None:
    with subprocess.Popen(["true"]) as gone:
        process = psutil.Process(gone.pid)
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        assert command_of(process) == []
    assert command_of(process) == []


@needs_root
def test_the_next_run_clears_up_after_a_killed_one() -> None:
    script = (
        "import time; from loadtest.kit.netns import Fabric\n"
        "with Fabric() as f: f.add('n0'); print(f.work, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    work = Path(child.stdout.readline().strip())
    remove_leftovers()
    assert ours(child.pid), "a run that lives is left alone"
    child.kill()
    child.wait()
    child.stdout.close()
    assert ours(child.pid)
    remove_leftovers()
    wait_until(lambda: not ours(child.pid), 30)
    assert not work.exists()
    assert not (LOCK_DIR / str(child.pid)).exists()


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FabricError, match="root"):
        Fabric()


@needs_root
def test_many_hosts_that_know_one_another_have_room_to() -> None:
    """64 of them had "no route to host", as all namespaces share the 1,024 entries of one table."""
    room = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    before = room.read_text()
    room.write_text("4")
    try:
        with Fabric() as fabric:
            hosts = [fabric.add(f"n{n}") for n in range(3)]
            assert int(room.read_text()) >= len(hosts) * (len(hosts) - 1)
        assert room.read_text() == "4\n"
    finally:
        room.write_text(before)

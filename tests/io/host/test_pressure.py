"""What the kernel says about this host: made-up counters, and this machine's own."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pcache.errors import UsageError
from p2pcache.io.host import pressure
from p2pcache.io.host.pressure import Pressure

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: 900000000 9 0 0 0 0 0 0 900000000 9 0 0 0 0 0 0
  eth0: {received} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0
 veth1: 5 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0
"""


class Host:
    """A procfs and a sysfs in a directory."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        (self.proc / "net").mkdir(parents=True)
        (self.proc / "pressure").mkdir()
        eth0 = self.sys / "class" / "net" / "eth0"
        (eth0 / "device").mkdir(parents=True)
        (eth0 / "speed").write_text("1000\n")  # Mbit/s
        veth = self.sys / "class" / "net" / "veth1"
        veth.mkdir()
        (veth / "speed").write_text("10000\n")
        self.set(0, 0, 0)

    def set(self, stalled_s: float, received: int, sent: int) -> None:
        for kind in ("cpu", "io", "memory"):
            text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(stalled_s * 1e6)}\n"
            full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=99999999999\n"
            (self.proc / "pressure" / kind).write_text(text + full)
        (self.proc / "net" / "dev").write_text(DEV.format(received=received, sent=sent))

    def pressure(self, link_bytes_per_s: int = 0) -> Pressure:
        return Pressure(link_bytes_per_s=link_bytes_per_s, proc=self.proc, sys=self.sys)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_link_is_what_a_real_interface_says_unless_it_is_set(host: Host) -> None:
    assert host.pressure().link_bytes_s() == 125_000_000
    assert host.pressure(7).link_bytes_s() == 7
    (host.sys / "class" / "net" / "eth0" / "speed").write_text("-1\n")
    assert host.pressure().link_bytes_s() == 0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock that looks are taken by; it stands still by itself."""
    now = [1000.0]
    monkeypatch.setattr(pressure, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def looked(looker: Pressure, host: Host, later: Callable[[float], None]) -> tuple[float, float]:
    """Stall share and link use over 0.25 s with 0.1 s of stalls and 12.5 MB sent."""
    looker.sample()
    later(0.25)
    host.set(0.1, 0, 12_500_000)
    sample = looker.sample()
    assert sample.cpu == sample.io == sample.memory
    assert sample.cpu is not None
    assert sample.link is not None
    return sample.cpu, sample.link


def test_stalls_and_links_are_shares_of_the_time_and_of_the_rate(
    host: Host, later: Callable[[float], None]
) -> None:
    stalled, full = looked(host.pressure(), host, later)
    assert stalled == pytest.approx(0.4)
    assert full == pytest.approx(0.4)  # at 125 MB/s; the veth's 10 Gbit/s are made up


def test_the_operator_knows_the_link_better(host: Host, later: Callable[[float], None]) -> None:
    _, full = looked(host.pressure(link_bytes_per_s=25_000_000), host, later)
    assert full == pytest.approx(2.0)


def test_the_first_look_and_one_too_soon_say_nothing(
    host: Host, later: Callable[[float], None]
) -> None:
    looker = host.pressure()
    assert looker.sample() == (None, None, None, None, None, 0, 0, 125e6)
    later(0.01)
    assert looker.sample().cpu is None
    assert looker.missing == []


def test_a_kernel_without_psi_leaves_links_and_says_so(host: Host) -> None:
    for kind in ("cpu", "io", "memory"):
        (host.proc / "pressure" / kind).unlink()
    (host.sys / "class" / "net" / "eth0" / "speed").write_text("-1\n")
    looker = host.pressure()
    looker.sample()
    assert [text.partition(":")[0] for text in looker.missing] == [
        "no stall figures (cpu, io, memory)", "the link's rate is unknown",
    ]  # fmt: skip


def test_nonsense_in_procfs_is_no_crash(host: Host) -> None:
    (host.proc / "pressure" / "cpu").write_text("some\n")
    (host.proc / "net" / "dev").unlink()
    assert host.pressure().sample().link is None


def test_a_cgroup_that_is_none_or_lies_elsewhere_is_refused() -> None:
    for name in ("no-such.slice", "../../etc"):
        with pytest.raises(UsageError, match="governor_cgroup"):
            Pressure(cgroup=name)


def test_this_machine_has_counters() -> None:
    looker = Pressure(link_bytes_per_s=1_000_000_000)
    looker.sample()
    time.sleep(0.25)
    sample = looker.sample()
    assert sample.link is None or sample.link >= 0
    assert sample.cpu is None or 0 <= sample.cpu <= 1

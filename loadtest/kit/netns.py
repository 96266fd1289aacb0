"""Hosts made of network namespaces on one bridge, each behind a shaped link. Needs root.

The bridge has a namespace of its own too, so nothing of this touches the machine's own network or
firewall, and deleting the namespaces deletes everything. Namespaces carry our process id; a lock
file of the same name tells a later run whether we still live, and where our work directory was.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from loadtest.kit.delay import TUN, DelayLine, open_tun

T = TypeVar("T")

PREFIX = "p2pstorm"
NETNS_DIR = Path("/run/netns")
LOCK_DIR = Path("/run") / PREFIX
CLONE_NEWNET = 0x40000000
SUBNET = "198.18"  # RFC 2544: addresses for benchmarks, nobody's own
BURST_BYTES = 136_000  # two full GSO packets: less throttles below the rate
# What clusters run, whatever the default of this machine is (docs/lab/0129).
CONGESTION_CONTROL = "cubic"
TUN_PACKETS = (
    10_000  # wait for the process behind it: with 500 a busy machine dropped what no link would
)
_IN_USE = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
# The kernel counts what all namespaces know of their neighbours together: where 33 hosts all talk to one another, "no
# route to host" would be a matter of luck.
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
_USUAL_NEIGHBOURS = 1024  # what there is room for if nobody changed it; a container sees no number
EXEC_S = 1.0  # a process that has no command line for longer has wiped it; 11 of 400 just started had none yet
QUEUE_S = 0.1  # of the shaper: a switch port's buffer, as in the measurements of the design


class FabricError(Exception):
    """Namespaces can't be made here; the text says why."""


class Host:
    """One namespace with one interface, `eth0`."""

    def __init__(self, namespace: str, port: str, address: str, rate_bytes_s: float) -> None:
        """Describe it; `Fabric.add` makes it.

        Args:
            namespace: its name below /run/netns.
            port: name of its port on the bridge.
            address: its IPv4 address.
            rate_bytes_s: both directions of its link; 0: unshaped.
        """
        self.namespace = namespace
        self.port = port
        self.address = address
        self.rate_bytes_s = rate_bytes_s

    @property
    def prefix(self) -> list[str]:
        """Put before a command, it runs there."""
        return ["ip", "netns", "exec", self.namespace]


class Fabric:
    """The bridges and their hosts. Use as a context manager; leaving it removes everything.

    Hosts are on the bridge in the middle, or on that of a rack, which a shaped uplink joins to it.
    """

    def __init__(self, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """Take the lock and clear away what dead runs left.

        Args:
            delay_s: from any host to any other, one way; 0: the bridge's own. With it there is no
                bridge, no racks, and few packets a second (`loadtest.kit.delay`).
            loss: share of packets that never arrive; only with a delay.

        Raises:
            FabricError: not root, or the tools are missing.
        """
        if os.geteuid() != 0:
            raise FabricError(
                "network namespaces need root; run this as root, or in a container with "
                "--privileged. `make demo` and `make test` work without."
            )
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise FabricError("`ip` and `tc` are missing; install the iproute2 package")
        remove_leftovers()
        self._work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-"))
        LOCK_DIR.mkdir(exist_ok=True)
        self._lock_path = LOCK_DIR / str(os.getpid())
        self._lock = self._lock_path.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._lock.write(f"{self._work}\n")
        self._lock.flush()
        self._bridge = f"{PREFIX}-{os.getpid()}-bridge"
        self._delay_s = delay_s
        self._loss = loss
        self._line: DelayLine | None = None
        self.hosts: dict[str, Host] = {}
        self._racks = 0
        self._neighbours = ""  # the machine's own number, if we raised it

    @property
    def work(self) -> Path:
        """A directory for this run; removed with it."""
        return self._work

    def __enter__(self) -> Self:
        _ip("netns", "add", self._bridge)
        self._add_bridge("br0")
        if self._delay_s:
            self._line = DelayLine(self._delay_s, self._loss)
        return self

    def _add_bridge(self, name: str) -> None:
        _ip("-n", self._bridge, "link", "add", name, "type", "bridge", "forward_delay", "0")
        _ip("-n", self._bridge, "link", "set", name, "up")

    def add_rack(self, rate_bytes_s: float) -> int:
        """Make a rack: a bridge with an uplink to the one in the middle; its number, from 1 on.

        Args:
            rate_bytes_s: both directions of the uplink.
        """
        if self._line is not None:
            raise FabricError("racks are made of bridges; with a delay there is none")
        self._racks += 1
        rack = self._racks
        self._add_bridge(f"br{rack}")
        _ip("-n", self._bridge, "link", "add", f"out{rack}", "type", "veth",
            "peer", "name", f"in{rack}")  # fmt: skip
        for device, bridge in ((f"out{rack}", f"br{rack}"), (f"in{rack}", "br0")):
            _ip("-n", self._bridge, "link", "set", "dev", device, "master", bridge, "up")
            self._limit(self._bridge, device, rate_bytes_s)
        return rack

    def left_racks_bytes(self) -> int:
        """Bytes that left all racks by their uplinks so far, with all headers."""
        return sum(self._sent(self._bridge, f"out{rack + 1}") for rack in range(self._racks))

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.close()
        _clear(os.getpid(), self._work)
        if self._neighbours:
            _NEIGHBOURS.write_text(self._neighbours)
        self._lock_path.unlink(missing_ok=True)
        self._lock.close()

    def add(self, name: str, *, rate_bytes_s: float = 0, group: int = 0, rack: int = 0) -> Host:
        """Make a host, its link to the bridge, and the shapers of both directions.

        Args:
            name: short; also the name of its port on the bridge.
            rate_bytes_s: both directions; 0: unshaped.
            group: hosts of different groups can be cut apart.
            rack: as `add_rack` numbered it; 0: in the middle.
        """
        namespace = f"{PREFIX}-{os.getpid()}-{name}"
        address = f"{SUBNET}.{group}.{len(self.hosts) + 1}"
        host = Host(namespace, name, address, rate_bytes_s)
        _ip("netns", "add", namespace)
        self._plug_in(host, rack)
        _ip("-n", namespace, "address", "add", f"{address}/16", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        with _allowed(CONGESTION_CONTROL):
            in_namespace(host, lambda: _IN_USE.write_text(CONGESTION_CONTROL))
        self.hosts[name] = host
        self._make_room(len(self.hosts) ** 2)
        if rate_bytes_s:
            self.shape(host, rate_bytes_s)
        return host

    def _make_room(self, neighbours: int) -> None:
        """See to it that all hosts together may know so many others."""
        try:
            room = _NEIGHBOURS.read_text() if _NEIGHBOURS.exists() else str(_USUAL_NEIGHBOURS)
            if int(room) < neighbours:
                _NEIGHBOURS.write_text(str(neighbours))
                self._neighbours = self._neighbours or room
        except OSError as error:
            raise FabricError(
                f"{len(self.hosts)} hosts need room for {neighbours} neighbours, which can't be made from here "
                f"({_NEIGHBOURS}: {error.strerror}): run this outside a container, or with fewer nodes"
            ) from error

    def _plug_in(self, host: Host, rack: int) -> None:
        if self._line is not None:
            try:
                self._line.add(host.address, in_namespace(host, lambda: open_tun("eth0")))
            except OSError as error:
                raise FabricError(f"a delay needs TUN devices ({TUN}): {error}") from error
            _ip("-n", host.namespace, "link", "set", "eth0", "txqueuelen", str(TUN_PACKETS))
            return
        _ip("link", "add", "eth0", "netns", host.namespace, "type", "veth",
            "peer", "name", host.port, "netns", self._bridge)  # fmt: skip
        _ip("-n", self._bridge, "link", "set", "dev", host.port, "master", f"br{rack}", "up")

    def shape(self, host: Host, rate_bytes_s: float) -> None:
        """Set the rate of both directions of a host's link."""
        host.rate_bytes_s = rate_bytes_s
        self._limit(host.namespace, "eth0", rate_bytes_s)
        if self._line is not None:
            self._line.shape(host.address, rate_bytes_s)
        else:
            self._limit(self._bridge, host.port, rate_bytes_s)

    @staticmethod
    def _limit(namespace: str, device: str, rate_bytes_s: float) -> None:
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
             "rate", f"{round(rate_bytes_s * 8)}bit", "burst", str(BURST_BYTES),
             "latency", f"{QUEUE_S * 1000:.0f}ms")  # fmt: skip

    def sent_bytes(self, host: Host) -> int:
        """Bytes that left a shaped host's interface so far, with all headers, from its qdisc."""
        return self._sent(host.namespace, "eth0")

    @staticmethod
    def sent_again(host: Host) -> int:
        """TCP segments that the host has sent again so far."""
        return in_namespace(host, _sent_again)

    @staticmethod
    def _sent(namespace: str, device: str) -> int:
        text = _run("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device)
        entries: list[dict[str, Any]] = json.loads(text)
        return int(next(e["bytes"] for e in entries if e.get("root")))

    def cut(self, one: int, other: int) -> None:
        """Let packets between two groups vanish, as a broken switch does."""
        self._routes(one, other, self._blackhole)

    def mend(self, one: int, other: int) -> None:
        """Undo `cut`."""
        self._routes(one, other, self._no_blackhole)

    def _routes(self, one: int, other: int, change: Callable[[Host, int], None]) -> None:
        for host in self.hosts.values():
            group = int(host.address.split(".")[2])
            if group in (one, other):
                change(host, other if group == one else one)

    @staticmethod
    def _blackhole(host: Host, group: int) -> None:
        # Packets into this pair end nowhere, silently; a blackhole route would make send() fail at once.
        void = f"void{group}"
        _ip(
            "-n", host.namespace, "link", "add", void, "type", "veth", "peer", "name", f"end{group}"
        )
        for device in (void, f"end{group}"):
            _ip("-n", host.namespace, "link", "set", "dev", device, "arp", "off", "up")
        _ip("-n", host.namespace, "route", "add", f"{SUBNET}.{group}.0/24", "dev", void,
            "src", host.address)  # fmt: skip

    @staticmethod
    def _no_blackhole(host: Host, group: int) -> None:
        _ip("-n", host.namespace, "link", "del", f"void{group}")


def in_namespace(host: Host, call: Callable[[], T]) -> T:
    """Run a call in a thread that has entered the host's namespace; sockets it opens stay there."""

    def enter() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(NETNS_DIR / host.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(fd, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"can't enter namespace {host.namespace}")
        finally:
            os.close(fd)
        return call()

    with ThreadPoolExecutor(1) as thread:  # a thread of its own: it never comes back out
        return thread.submit(enter).result()


def _sent_again() -> int:
    # A process's own file would show the namespace of its first thread.
    lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def remove_leftovers() -> None:
    """Remove what runs left that were killed: their processes, namespaces, mounts, directories."""
    for lock in LOCK_DIR.glob("[0-9]*"):
        with lock.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # it lives
            work = file.readline().strip()
            _clear(int(lock.name), Path(work) if work else None)
            lock.unlink(missing_ok=True)


def _clear(pid: int, work: Path | None) -> None:
    remove_namespaces(f"{PREFIX}-{pid}-")
    # The path was written by us, but only a directory that we could have made is ever deleted.
    if work is not None and work.name.startswith(f"{PREFIX}-"):
        _unmount_below(work)
        shutil.rmtree(work, ignore_errors=True)


def remove_namespaces(prefix: str) -> None:
    """Kill every process in the namespaces with this prefix and delete them."""
    names = [p.name for p in NETNS_DIR.glob(f"{prefix}*")] if NETNS_DIR.is_dir() else []
    # Who is still on the way in isn't in any list of the namespace's, and would stay there for good.
    pids = [p.pid for p in psutil.process_iter() if _entering(command_of(p), names)]
    pids += [int(p) for name in names for p in _run("ip", "netns", "pids", name).split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for name in names:
        # A namespace goes away with its last process; deleting only its name would leave it.
        _run("ip", "netns", "delete", name)
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{p}/exe").exists() for p in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def command_of(process: psutil.Process) -> list[str]:
    """A process's command line; of one that is just becoming another program, that program's.

    Empty for one that is gone, and for the kernel's own, which have no program.
    """
    deadline = time.monotonic() + EXEC_S
    with contextlib.suppress(psutil.Error):
        while not (command := process.cmdline()):
            if not process.exe() or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return command
    return []


def _entering(command: list[str], names: list[str]) -> bool:
    """Whether this is `Host.prefix` at work for one of these namespaces."""
    return any(command[:4] == ["ip", "netns", "exec", name] for name in names)


def mount_small_disk(path: Path, size_bytes: int) -> None:
    """A file system of `size_bytes` in memory, to be filled up; removed with the fabric."""
    path.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", PREFIX, str(path))


def _unmount_below(folder: Path) -> None:
    targets = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for target in targets:
        if Path(target).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


@contextlib.contextmanager
def _allowed(name: str) -> Iterator[None]:
    """A namespace may only choose what the machine allows everybody; allow it for this moment."""
    before = _ALLOWED.read_text()
    if name in before.split():
        yield
        return
    _ALLOWED.write_text(f"{before.strip()} {name}")
    try:
        yield
    finally:
        _ALLOWED.write_text(before)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FabricError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout

"""A wide-area link for network namespaces: packets wait their time. Where the kernel has no netem.

Each host's interface is a TUN device whose other end a process of ours holds: it reads packets, lets
them wait, and writes them to the host that they are for. Python carries some 10,000 packets a second:
enough for a few nodes at 50 Mbit/s, not for a storm.
"""

import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

TUN = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA  # _IOW('T', 202, int), <linux/if_tun.h>
IFF_TUN_NO_PI = 0x1001  # IP packets, without a header of the device's own
PACKET_BYTES = 65_535
AT_ONCE = 64  # packets read from one host before the others have their turn
QUEUE_S = 0.1  # before a host's link: what doesn't fit is dropped, as in `netns`
DESTINATION = slice(16, 20)  # of an IPv4 header


def open_tun(name: str) -> int:
    """A TUN device in the caller's namespace; the descriptor is its far end.

    Raises:
        OSError: the kernel has none, or we aren't root.
    """
    fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd


class DelayLine:
    """The process that carries packets, from its starter's side. It ends when its starter does."""

    def __init__(self, delay_s: float, loss: float = 0.0) -> None:
        """Start it.

        Args:
            delay_s: of each packet from host to host, besides its time in queues.
            loss: share of packets that never arrive, each by itself.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loadtest.kit.delay", str(theirs.fileno()), str(delay_s), str(loss)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def add(self, address: str, fd: int) -> None:
        """Carry what comes out of this TUN device, and what is for this address; takes `fd` over."""
        socket.send_fds(self._control, [json.dumps([address, 0.0]).encode()], [fd])
        os.close(fd)

    def shape(self, address: str, rate_bytes_s: float) -> None:
        """The rate at which a host is sent packets; 0: as they come."""
        self._control.send(json.dumps([address, rate_bytes_s]).encode())

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self._control.close()
        self._process.wait()


class Port:
    """The way to one host: a queue before its link, and the delay behind it."""

    def __init__(self, fd: int, delay_s: float, loss: float = 0.0) -> None:
        """Nothing is on its way; its link isn't shaped."""
        self.fd = fd
        self.lost = 0
        self._loss = loss
        self._dice = random.Random(fd)
        self.rate_bytes_s = 0.0
        self.dropped = 0
        self._delay_s = delay_s
        self._free_at = 0.0  # when the link has sent all that it was given
        self._waiting: deque[tuple[float, bytes]] = deque()  # (when it arrives, packet)

    def take(self, packet: bytes, now: float) -> None:
        """A packet for this host; dropped if the queue is full."""
        start = max(now, self._free_at)
        if start > now + QUEUE_S:
            self.dropped += 1
            return
        if self.rate_bytes_s:
            self._free_at = start = start + len(packet) / self.rate_bytes_s
        if self._loss and self._dice.random() < self._loss:
            self.lost += 1
            return
        self._waiting.append((start + self._delay_s, packet))

    @property
    def due_at(self) -> float | None:
        """When the next packet arrives; None: nothing is on its way."""
        return self._waiting[0][0] if self._waiting else None

    def due(self, now: float) -> list[bytes]:
        """The packets that have arrived, in order; they are gone from here."""
        arrived: list[bytes] = []
        while self._waiting and self._waiting[0][0] <= now:
            arrived.append(self._waiting.popleft()[1])
        return arrived


class Router:
    """Reads, delays, writes; the process's one loop."""

    def __init__(self, control: socket.socket, delay_s: float, loss: float) -> None:
        """Take hosts from `control` until it is closed at the other end."""
        self._control = control
        self._loss = loss
        self._delay_s = delay_s
        self._ports: dict[bytes, Port] = {}  # by address
        self._fds: set[int] = set()
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Carry packets until the starter is gone."""
        while True:
            dues = [port.due_at for port in self._ports.values()]
            next_at = min((due for due in dues if due is not None), default=None)
            wait_s = 1.0 if next_at is None else max(0.0, next_at - time.monotonic())
            for fd, _ in self._epoll.poll(wait_s):
                if fd in self._fds:
                    self._read(fd)
                elif not self._hear():
                    return
            self._deliver(time.monotonic())

    def _hear(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._control, 1024, 1)
        if not message:
            return False
        address, rate = json.loads(message)
        key = socket.inet_aton(address)
        for fd in fds:
            self._ports[key] = Port(fd, self._delay_s, self._loss)
            self._fds.add(fd)
            self._epoll.register(fd, select.EPOLLIN)
        self._ports[key].rate_bytes_s = rate
        return True

    def _read(self, fd: int) -> None:
        now = time.monotonic()
        for _ in range(AT_ONCE):
            try:
                packet = os.read(fd, PACKET_BYTES)
            except OSError:  # empty, or the host isn't up (any more)
                return
            port = self._ports.get(packet[DESTINATION])
            if port is not None:
                port.take(packet, now)

    def _deliver(self, now: float) -> None:
        for port in self._ports.values():
            for packet in port.due(now):
                try:
                    os.write(port.fd, packet)
                except OSError:  # the host isn't up (any more): as if its cable were out
                    port.dropped += 1


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as starter:
        Router(starter, float(sys.argv[2]), float(sys.argv[3])).run()

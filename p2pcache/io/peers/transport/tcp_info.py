"""Facts of a TCP connection from Linux: round trip, rate, bytes that wait in its buffers."""

import fcntl
import math
import select
import socket
import struct
import termios

from p2pcache.core.upload.random_loss import LossSample
from p2pcache.errors import UsageError

# Of `struct tcp_info` in <linux/tcp.h>.
_LAST_DATA_AT = 52  # `tcpi_last_data_recv`, milliseconds ago
_RTT_AT = 68  # `tcpi_rtt`, microseconds
_SENT_AGAIN_AT = 100  # `tcpi_total_retrans`, segments
_MIN_RTT_AT = 148  # `tcpi_min_rtt`, microseconds
_SEGMENTS_AT = 156  # `tcpi_data_segs_out`
_RATE_AT = 160  # `tcpi_delivery_rate`, bytes per second
_INFO_BYTES = _RATE_AT + 8
_NO_RTT = 0xFFFFFFFF
_SIOCOUTQNSD = 0x894B  # of <linux/sockios.h>: bytes that were written and not sent
TO_ALLOW = (
    "as root load its module, and name it in the sysctl net.ipv4.tcp_allowed_congestion_control"
)
_TCP_NOTSENT_LOWAT = 25  # of <linux/tcp.h>: `socket` has it from Python 3.12 on

# An upload counts as sent when no more than this waits: a few packets, or `_LITTLE_S` worth on a fast link, where
# waiting for less would leave a gap before the next upload.
LITTLE_BYTES = 16 << 10
_LITTLE_S = 0.01


def min_rtt_s(sock: socket.socket) -> float:
    """The least recent round-trip time, in seconds; 0: not known."""
    info = _info(sock)
    (least_us,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
    return least_us * 1e-6 if least_us != _NO_RTT else 0.0


def quiet_s(sock: socket.socket) -> float:
    """How long ago the last byte came, in seconds; infinite: not known."""
    info = _info(sock)
    (ago_ms,) = struct.unpack_from("=I", info, _LAST_DATA_AT)
    return float(ago_ms) * 1e-3 if info[0] else math.inf  # no state of TCP is 0


def rate(sock: socket.socket) -> int:
    """The recent delivery rate, in bytes per second; 0: not known."""
    (found,) = struct.unpack_from("=Q", _info(sock), _RATE_AT)
    return int(found)


def loss_sample(sock: socket.socket) -> LossSample:
    """What the kernel counted of packets and round trips; zeros: not known."""
    info = _info(sock)
    segments, sent_again, rtt_us = (
        int(struct.unpack_from("=I", info, at)[0]) for at in (_SEGMENTS_AT, _SENT_AGAIN_AT, _RTT_AT)
    )
    return LossSample(segments, sent_again, rtt_us * 1e-6, min_rtt_s(sock))


def unread(fd: int) -> int:
    """Bytes that came and wait for us to read them."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


def unsent(sock: socket.socket) -> int:
    """Bytes that wait in the send buffer, without those on the wire.

    Raises:
        OSError: the socket is closed.
    """
    return int.from_bytes(fcntl.ioctl(sock, _SIOCOUTQNSD, bytes(4)), "little")


def wait_sent(sock: socket.socket, stall_s: float) -> None:
    """Block until next to nothing waits in the send buffer.

    Raises:
        TimeoutError: nothing left it for `stall_s`.
        OSError: the connection broke.
    """
    left = unsent(sock)
    if left <= LITTLE_BYTES or left <= (little := max(LITTLE_BYTES, int(rate(sock) * _LITTLE_S))):
        return
    # The socket is writable when no more than this is left.
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, little)
    try:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while left > little:
            found = poll.poll(stall_s * 1000)
            if found and found[0][1] & ~select.POLLOUT:
                raise ConnectionResetError("the connection is gone")
            before, left = left, unsent(sock)
            if not found and left >= before:
                raise TimeoutError("the peer doesn't read")
    finally:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 0)


def use_congestion_control(sock: socket.socket, name: str) -> bool:
    """Set TCP's congestion control of a connection; False: it isn't TCP, or this one isn't allowed, and all stays."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        return False
    return True


def check_congestion_control(name: str) -> None:
    """See that this process may use it.

    Raises:
        UsageError: it may not, or the kernel has none of that name.
    """
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            raise UsageError(
                f"TCP's congestion control {name!r} can't be used here: {error.strerror}; {TO_ALLOW}"
            ) from None


def _info(sock: socket.socket) -> bytes:
    """`struct tcp_info`; zeros from an old kernel or a closed socket."""
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except (OSError, ValueError):  # a closed socket of asyncio; of uvloop
        found = b""
    return found.ljust(_INFO_BYTES, b"\0")

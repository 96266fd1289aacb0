"""A connection that brings next to nothing for what was asked: bytes that drip keep no request alive."""

import time

from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.connection import Connection


class Drips:
    """Looks now and then at what one connection has brought (loop's thread)."""

    def __init__(self, limits: PeerLimits) -> None:
        """Nothing is expected yet."""
        self._limits = limits
        self._since = time.monotonic()  # since when something is expected, and we take what comes
        self._bytes_in = 0  # that had come by then

    def look(self, connection: Connection, now: float) -> bool:
        """Whether too little came since something was expected, for as long as a stall may last.

        Args:
            connection: the same each time.
            now: monotonic seconds.
        """
        if not connection.open:
            return False
        waits = tcp_info.unread(connection.fd)
        came = connection.bytes_in + waits - self._bytes_in
        # What waits in the kernel and is worth reading waits for us, not for the peer.
        ours = connection.paused or connection.reading.locked() or waits > connection.lowat
        seconds = now - self._since
        if connection.expected and not ours and seconds < self._limits.stall_s:
            return False
        few = came < self._limits.least_bytes_per_s * seconds
        drips = (
            bool(connection.expected) and not ours and few and came > 0
        )  # silence has its own limits
        self._since, self._bytes_in = now, connection.bytes_in + waits
        return drips

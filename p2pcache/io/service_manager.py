"""Messages to the service manager: ready, stopping, a status line, and that the event loop turns.

The protocol is systemd's sd_notify(3): datagrams of `KEY=value` lines to the unix socket that
NOTIFY_SOCKET names. Without that variable nothing is sent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from p2pcache.errors import UsageError
from p2pcache.io.log import redact

SEND_S = 0.5  # the manager reads at once; a stuck one must not hold up the loop for long
STATUS_S = 2.0  # how often the status is compared with the last one sent
STATUS_CHARS = 300  # `systemctl status` shows one line

_log = logging.getLogger(__name__)


class Notifier:
    """Sends to the service manager; without one it does nothing.

    Inside its `with` block, which needs a running loop, the watchdog is fed by a timer of that
    loop at half its limit: a loop that hangs misses the limit, and the manager restarts the daemon.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """Nothing is sent yet.

        Args:
            address: a path, or `@name` for an abstract socket; "" for no manager.
            watchdog_s: silence after which the manager restarts us, in seconds; 0: it doesn't.

        Raises:
            UsageError: another kind of address.
        """
        if address and (address[0] not in "/@" or len(address) < 2):
            raise UsageError(
                f"NOTIFY_SOCKET is {address!r}; expected /PATH or @NAME, as systemd sets it"
            )
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status: Callable[[], str] | None = None  # set while we are ready
        self._sent = ""  # the last status message that the manager got
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """As the manager describes it: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        usec = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        watchdog_s = int(usec) / 1e6 if ours and usec.isascii() and usec.isdigit() else 0.0
        return cls(environ.get("NOTIFY_SOCKET", ""), watchdog_s)

    def __enter__(self) -> Self:
        if self._address:
            self._pulse()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def ready(self, status: Callable[[], str]) -> None:
        """We serve from now on.

        Args:
            status: returns one line about the daemon; called every few seconds, sent when it changed.
        """
        self._status = status
        self._send_status()

    def stopping(self, status: str) -> None:
        """We serve no longer; the end may take as long as the daemon's own limits say."""
        self._status = None
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _pulse(self) -> None:
        if self.watchdog_s:
            self._send("WATCHDOG=1")
        self._send_status()
        pause = min(STATUS_S, self.watchdog_s / 2) if self.watchdog_s else STATUS_S
        self._timer = asyncio.get_running_loop().call_later(pause, self._pulse)

    def _send_status(self) -> None:
        """READY goes with each status, so that one lost datagram doesn't fail the start."""
        if self._status is None or not self._address:
            return
        line = redact(self._status()).replace("\n", " ")[:STATUS_CHARS]
        message = f"READY=1\nSTATUS={line}"
        if message != self._sent and self._send(message):
            self._sent = message

    def _send(self, message: str) -> bool:
        """One datagram. A manager that can't be reached is no reason to stop working."""
        if not self._address:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(SEND_S)
                sock.sendto(message.encode(), self._address)
        except OSError as error:
            _log.debug("the service manager can't be told: %s", error)
            return False
        return True

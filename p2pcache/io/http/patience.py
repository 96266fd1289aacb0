"""Waiting for an agent's answer: after some seconds we say so, and tell an agent that hangs from a slow one.

Standard library only: this is on the fast path of `p2pcache pull`.
"""

import contextlib
import http.client
import io
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from p2pcache.errors import Unreachable

SAY_S = 4.0  # between two signs of life that we give, and for a healthy agent to answer a probe
UNANSWERED = 2  # probes in a row: a node that is short of CPU may miss one

Say = Callable[[str], None]
"""Called with one line for people while we wait."""


def silently(_text: str) -> None:
    """Say nothing."""


class Patience:
    """Waits for the bytes of one answer."""

    def __init__(
        self, address: str, connection: Callable[[], http.client.HTTPConnection], answer_s: float, say: Say
    ) -> None:  # fmt: skip
        """Nothing is waited for yet.

        Args:
            address: of the agent, for people.
            connection: makes a connection to it that isn't open yet.
            answer_s: the longest time without a byte.
            say: told that we wait.
        """
        self._address = address
        self._connection = connection
        self._answer_s = answer_s
        self._say = say

    def response(self, sock: socket.socket, **how: Any) -> http.client.HTTPResponse:
        """A response whose reads wait as `wait` does; arguments are those of `HTTPResponse`."""
        return http.client.HTTPResponse(_Patient(sock, self.wait_readable), **how)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Say that we wait while the block connects, if that takes long."""
        over, began = threading.Event(), time.monotonic()

        def watch() -> None:
            while not over.wait(SAY_S):
                silent = time.monotonic() - began
                self._say(f"waiting to reach the agent at {self._address} ({silent:.0f} s)")

        if self._say is not silently:
            threading.Thread(target=watch, name="connecting", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def wait_readable(self, fd: int) -> None:
        """Wait until something can be read.

        Raises:
            TimeoutError: nothing came.
            Unreachable: nothing came, and the agent doesn't answer probes: it hangs.
        """
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        began, unanswered = time.monotonic(), 0
        while True:
            left = began + self._answer_s - time.monotonic()
            if poll.poll(max(0.0, min(0.0 if unanswered else SAY_S, left)) * 1000):
                return
            silent = time.monotonic() - began
            if silent >= self._answer_s:
                raise TimeoutError
            if unanswered == UNANSWERED:
                raise Unreachable(
                    f"the agent at {self._address} hangs: it has answered nothing for {silent:.0f} s; look at its "
                    "log and `dmesg` (a disk that doesn't answer, a paused container?), then restart it"
                )
            self._say(f"waiting for the agent at {self._address} to answer ({silent:.0f} s)")
            unanswered = 0 if self._answers() else unanswered + 1

    def _answers(self) -> bool:
        connection = self._connection()
        connection.timeout = SAY_S
        try:
            connection.request("GET", "/healthz")
            connection.getresponse()
        except (TimeoutError, BlockingIOError):  # the latter: its queue of callers is full
            return False
        except (OSError, http.client.HTTPException):
            return True  # it doesn't hang; what is wrong, our own call finds out
        finally:
            connection.close()
        return True


class _Patient(io.RawIOBase):
    """A socket, as an `HTTPResponse` uses one, that calls `wait` before each read."""

    def __init__(self, sock: socket.socket, wait: Callable[[int], None]) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self._wait = wait

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._wait(self._raw.fileno())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()

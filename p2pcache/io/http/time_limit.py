"""A time limit for all that is read of a connection: its own is for each byte, and one may come now and then."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def in_time(sock: socket.socket | None, seconds: float) -> Iterator[None]:
    """Break a connection that is still read after so long (None: it is closed already).

    Raises:
        TimeoutError: it was broken.
    """
    over = threading.Event()

    def break_off() -> None:
        over.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # type: ignore[arg-type] # also of a TLS one

    timer = threading.Timer(seconds, break_off)
    timer.daemon = True
    if sock is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # What came is cut off somewhere, and a head without its end may look like a whole one.
        if over.is_set():
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

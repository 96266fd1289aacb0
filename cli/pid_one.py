"""The first moments of a command, in which Ctrl-C would print where in an import Python is.

As PID 1 of a container a SIGTERM that nobody handles is dropped by the kernel.
Importing this module sets a handler, before the imports that take most of a command's start. `cli.main` replaces
it by its own. In the image `env --block-signal` keeps a signal back that comes even earlier.
"""

import os
import signal
import sys
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
# How our programs are called. Others that import us have rules of their own.
_OURS = {"p2pcache", "p2pcache-init"}


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has begun that would need an end


def handle_early() -> None:
    """Let a signal end this process that has no handler yet: both in PID 1, Ctrl-C in our commands.

    Elsewhere SIGTERM ends a process by itself, which systemd takes for a clean end.
    """
    called = (sys.argv or [""])[0]
    ours = called.rpartition("/")[2] in _OURS or called.endswith("/p2pcache/__main__.py")
    numbers = ENDING if os.getpid() == 1 else (signal.SIGINT,) if ours else ()
    for number in numbers:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)


def hear_signals() -> None:
    """Take signals that were kept back until handlers are set."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


handle_early()

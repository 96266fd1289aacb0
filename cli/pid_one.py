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
_OURS = ("/p2pcache", "/p2pcache-init", "/p2pcache/__main__.py")


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has begun that would need an end


def handle_early() -> None:
    """Let a signal end this process if it is our command, or PID 1, and has no handler of its own."""
    if os.getpid() == 1 or sys.argv[0].endswith(_OURS):
        for number in ENDING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _end)


def hear_signals() -> None:
    """Take signals that were kept back until handlers are set."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


handle_early()

"""Signals that come before a command has set its handlers."""

import signal
import subprocess
import sys

import pytest

# A shell lets what it starts in the background ignore Ctrl-C, and this test's children with it.
EARLY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = [{program!r}]
import p2pcache.cli
os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize(("program", "number", "code"), [
    ("/usr/bin/p2pcache", 2, 130), ("p2pcache", 2, 130), ("/usr/bin/p2pcache-init", 2, 130),
    ("/x/p2pcache/__main__.py", 2, 130), ("/usr/bin/an-engine", 2, -signal.SIGINT),
    ("/usr/bin/p2pcache", 15, -signal.SIGTERM),
])  # fmt: skip
def test_a_signal_before_the_imports_are_done(program: str, number: int, code: int) -> None:
    """Ctrl-C printed where in an import Python was. Other programs that import us keep their own rule."""
    early = EARLY.format(program=program, number=number)
    done = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert ("KeyboardInterrupt" in done.stderr) == (code == -signal.SIGINT)

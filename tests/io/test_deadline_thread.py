"""Blocking calls with a deadline."""

import socket
import threading
import time

import pytest

from p2pcache.errors import TimedOut
from p2pcache.io.deadline_thread import DeadlineThread


def test_a_call_that_hangs_ends_at_its_deadline() -> None:
    hang = threading.Event()
    began = time.monotonic()
    call = DeadlineThread(hang.wait, limit_s=0.1, what="a dead mount")
    with pytest.raises(TimedOut, match="a dead mount: no answer"):
        call.result()
    assert time.monotonic() - began < 30
    hang.set()
    assert DeadlineThread(lambda: 7, limit_s=30, what="x").result() == 7
    with pytest.raises(socket.gaierror):
        DeadlineThread(_fail, limit_s=30, what="x").result()


def _fail() -> None:
    raise socket.gaierror

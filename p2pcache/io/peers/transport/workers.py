"""Threads, buffers, and the one way back from threads to the loop."""

import asyncio
import contextlib
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from p2pcache.core.peers.settings import PULSE_MAX_S

# Half of a usual chunk. Each slice costs the same wake-ups, so smaller ones cost more CPU; larger ones are no better
# (docs/lab/0006-receive-threads.md).
SLICE_BYTES = 2 << 20
# Slices that wait to be hashed and written while their connections go on receiving. 2 are enough for two cores, the
# others for disks that stutter.
MAX_WAITING = 4

_log = logging.getLogger(__name__)


class Frames(Protocol):
    """Control frames that the loop itself receives (`receive.control_reader`)."""

    def receive_all(self) -> bool:
        """Receive and handle what has come; returns whether anything had."""
        ...

    def wake_loop(self, *, on: bool) -> None:
        """Whether frames that come wake the loop."""


class Inbox:
    """What the loop's thread has to do: calls that threads hand to it, and frames that have come.

    One wake-up is for all that has gathered. While this node pulls over slow links more gathers: the loop acts in
    **pulses**, `pulse_s` apart, and nothing wakes it between two of them. In a storm a wake-up costs more than what is
    done then (docs/lab/0071-pulses.md). After a pulse in which nothing came, the next call or frame wakes the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Each call wakes the loop, unless another one has."""
        self.loop = loop
        self.pulse_s = 0.0  # from one pulse to the next, in whole milliseconds as uvloop's timers; 0: there are none
        self.wanted_pulse_s: Callable[[], float] | None = None  # what it should be now
        self._asked_at = -math.inf  # when that was asked last
        self.frames: Frames | None = None
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self._woken = False  # or a pulse will come
        self._pulse: asyncio.TimerHandle | None = None  # the next one

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Run `call(*args)` on the loop soon, after all that was posted before it."""
        self._calls.append((call, args))
        with self._lock:
            if self._woken:
                return
            self._woken = True
        try:
            self.loop.call_soon_threadsafe(self.drain)
        except RuntimeError:  # the loop is closed
            _log.debug("a call came after the loop had closed")

    def drain(self) -> None:
        """Make the calls that have gathered, and handle frames (loop's thread)."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        came = True  # an error that leaves this method must not end the wake-ups
        try:
            came = self._handle_all()
        finally:
            self._wake_again(came=came)

    def stop(self) -> None:
        """Make the last calls; there are no pulses any more (loop's thread)."""
        self.wanted_pulse_s, self.pulse_s = None, 0.0
        self.drain()

    def _handle_all(self) -> bool:
        came = bool(self._calls)
        # Only the present ones. Those that are posted meanwhile come in the loop's next round; nothing has to wake it.
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception:  # noqa: BLE001 - one bad call must not lose those behind it
                _log.exception("a call from the data plane failed")
        return (self.frames is not None and self.frames.receive_all()) or came

    def _wake_again(self, *, came: bool) -> None:
        now = self.loop.time()
        if self.wanted_pulse_s is not None and now >= self._asked_at + PULSE_MAX_S:
            self._asked_at, self.pulse_s = now, self.wanted_pulse_s()
        goes_on = came and self.pulse_s > 0
        if self.frames is not None:
            self.frames.wake_loop(on=not goes_on)
        with self._lock:
            again = bool(self._calls)
            self._woken = again or goes_on
        if again:
            self.loop.call_soon(self.drain)
        elif goes_on:
            at = self.pulse_after(now + self.pulse_s / 2)
            self._pulse = self.loop.call_at(at, self.drain)

    def pulse_after(self, when: float) -> float:
        """The loop's time of the first pulse from `when` on, or up to a ten-thousandth of a pulse before.

        A timer that goes by it needs no wake-up of its own.
        """
        if not self.pulse_s or when == math.inf:
            return when
        return math.ceil(when / self.pulse_s - 1e-4) * self.pulse_s


class Workers:
    """A few threads for short jobs, started as jobs come. Jobs must not raise; their errors are logged."""

    def __init__(self, count: int, name: str) -> None:
        """Start one thread.

        Args:
            count: threads at most. Many nodes never have work for all of them, and a lone pull has none at all.
            name: what they are called.
        """
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._start_one()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` on one of the threads."""
        self._jobs.put(job)
        if len(self._threads) < self._count:
            # Where the system allows no more threads, those that live do it.
            with contextlib.suppress(RuntimeError):
                self._start_one()

    def stop(self) -> None:
        """Finish the submitted jobs, then end the threads (blocks)."""
        with self._lock:
            self._count = 0
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start_one(self) -> None:
        with self._lock:
            if len(self._threads) < self._count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - a thread that died would stop the data plane silently
                _log.exception("a job of the data plane failed")
            del job  # it holds a file open, which must not last until the next job


class Slice:
    """A receive buffer, shared by the writes that still need it."""

    __slots__ = ("_holds", "_lock", "_pool", "view")

    def __init__(self, pool: "SlicePool", size_bytes: int) -> None:
        self.view = memoryview(bytearray(size_bytes))
        self._pool = pool
        self._lock = threading.Lock()
        self._holds = 1

    def hold(self) -> None:
        """Add a holder."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """Remove a holder; the last one gives the buffer back."""
        with self._lock:
            self._holds -= 1
            free = self._holds == 0
        if free:
            self._holds = 1
            self._pool.give(self)

    @property
    def shared(self) -> bool:
        """Whether anything besides the receiving thread holds it."""
        return self._holds > 1


class SlicePool:
    """Reused receive buffers, the last used first (it is still in the cache).

    `take` waits until one is free. So received bytes that aren't written yet stay bounded, and a peer
    that is quicker than our disk is slowed down by TCP. Idle connections hold none.
    """

    def __init__(self, count: int, slice_bytes: int = SLICE_BYTES) -> None:
        """Make at most `count`, each when it's needed."""
        self._slice_bytes = slice_bytes
        self._room = threading.Semaphore(count)
        self._free: deque[Slice] = deque()
        self.made = 0

    def take(self) -> Slice:
        """A buffer to receive into; `release` it."""
        self._room.acquire()
        try:
            return self._free.pop()
        except IndexError:
            self.made += 1
            return Slice(self, self._slice_bytes)

    def give(self, used: Slice) -> None:
        """Take a buffer back from its last holder."""
        self._free.append(used)
        self._room.release()

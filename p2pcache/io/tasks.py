"""Tasks, threads and signals of a daemon, with one supervised owner.

`Tasks.spawn` is the only place of the project that creates tasks. A task that dies by accident
ends the daemon loudly (a supervisor restarts it), instead of leaving half of it running.
"""

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from p2pcache.io.process_limits import limit_reached

P = ParamSpec("P")
T = TypeVar("T")

# Longer than pauses within a pull. An idle thread costs memory (its stack, its arena of malloc).
THREAD_IDLE_S = 5.0

_log = logging.getLogger(__name__)


class Tasks:
    """All tasks of one daemon. Leaving the `async with` cancels what is left and waits for it.

    When a task of `spawn` fails, the body of the `async with` is cancelled and the
    block raises that failure (the first one, not an exception group).
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._live: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        for task in list(self._live):
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise _first(group) from None

    @property
    def count(self) -> int:
        """How many run now."""
        return len(self._live)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        """Run `work` as a task whose failure ends the daemon, and return it.

        Args:
            work: the coroutine.
            name: shown in logs and by debuggers.

        Raises:
            RuntimeError: the daemon is stopping already.
        """
        if self._closing:
            work.close()
            raise RuntimeError(f"task {name!r} came too late: the daemon is stopping")
        task = self._group.create_task(work, name=name)
        self._live.add(task)
        task.add_done_callback(self._live.discard)
        return task

    def spawn_contained(self, work: Coroutine[Any, Any, object], *, name: str) -> None:
        """Run `work` as a task whose failure is logged and ends nothing else (one connection)."""
        try:
            task = self.spawn(_contained(work, name), name=name)
        except RuntimeError:
            work.close()
            raise
        # If it is cancelled before its first step, `_contained` never awaits the coroutine that it holds.
        task.add_done_callback(lambda _: work.close())

    async def finish(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run `work` as a task and wait for it. Cancelled, it stops waiting, not the work.

        Raises:
            Exception: what `work` raises; it ends nothing else.
            RuntimeError: the daemon is stopping already.
        """
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                ended.set_result(await work)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                ended.set_exception(error)
                mark_retrieved(ended)
            finally:
                ended.cancel()  # does nothing to one that has ended

        self.spawn_contained(run(), name=name)
        return await asyncio.shield(ended)

    def every(
        self, interval_s: float, action: Callable[[], Awaitable[object]], *, name: str
    ) -> None:
        """Call `action` each `interval_s` seconds, for as long as the daemon lives."""
        _ = self.spawn(_repeat(interval_s, action), name=name)


class Shared(Generic[T]):
    """Joins callers of the same work: the first caller does it, the others wait for its result."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[T]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether this work is being done now."""
        return key in self._running

    async def share(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result (or error) of `work`, called by us or by a caller that is doing it now.

        Args:
            key: the same work has the same key.
            work: called if no other caller does it. If that one is cancelled, another goes on.
        """
        while (running := self._running.get(key)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                return running.result()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        try:
            future.set_result(await work())
        except Exception as error:
            future.set_exception(error)
            future.exception()  # retrieved, also without other callers
            raise
        finally:
            future.cancel()  # does nothing to one that has ended
            del self._running[key]
        return future.result()


def mark_retrieved(work: "asyncio.Future[Any]") -> None:
    """Keep asyncio from logging the error of work that has ended: its caller raises it, or waits no more."""
    if not work.cancelled():
        work.exception()


class Turns:
    """A lock per key, kept only while it is held or waited for: strangers choose the keys."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


async def _contained(work: Coroutine[Any, Any, object], name: str) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - the one place that contains a bug in a connection's task
        _log.exception("task %s failed; the daemon goes on without it", name)


async def _repeat(interval_s: float, action: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await action()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


asking: ContextVar[str] = ContextVar("asking", default="")
"""The client for whom work is done; tasks inherit it. "": the daemon's own work."""


class Threads:
    """A few daemon threads for blocking work, started when they are needed and ended when idle.

    Unlike an executor's, these threads are never joined: a storage read that hangs can't hold
    up the end of the process.

    Jobs that wait are taken from one client after the other. Invariants: `_waiting` holds the waiting jobs by client
    and no empty queue; `_taken` counts the jobs on threads by client, and has no zeros.
    """

    def __init__(
        self, count: int, *, name: str, idle_s: float = THREAD_IDLE_S, each: int = 0
    ) -> None:
        """Run up to `count` jobs at once, the others one after the other behind them.

        Args:
            count: threads at most.
            name: what the threads are called.
            idle_s: how long a thread without work waits before it ends.
            each: jobs of one client at once; 0: any number.
        """
        self._count = count
        self._name = name
        self._idle_s = idle_s
        self._each = each or count
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._taken: Counter[str] = Counter()
        # One box per thread without work. The last one goes first, so that a few jobs keep few threads.
        self._idle: list[queue.SimpleQueue[tuple[str, Callable[[], None]]]] = []
        self._live = 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` on a thread and wait for it. Cancelled, it stops waiting, not the call.

        Raises:
            NotAllowed: the system allows no thread at all; what `work` raises comes, too.
        """
        return await self.begin_job(work, *args, **kwargs)

    def begin_job(
        self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """As `run`, for callers that don't wait: the result comes in the future."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type] # None only if T allows it

        def job() -> None:
            result: T | None = None
            problem: BaseException | None = None
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                problem = error
            # If the loop is closed by now the daemon has ended, and nothing waits.
            try:
                loop.call_soon_threadsafe(settle, result, problem)
            except RuntimeError:
                return

        self._submit(asking.get(), job)
        return answer

    def _submit(self, client: str, job: Callable[[], None]) -> None:
        with self._lock:
            if self._taken[client] >= self._each:
                self._wait(client, job)
            elif self._idle:
                self._taken[client] += 1
                self._idle.pop().put((client, job))
            elif self._live < self._count:
                self._start(client, job)
            else:
                self._wait(client, job)
            if not self._taken[client]:
                del self._taken[client]

    def _wait(self, client: str, job: Callable[[], None]) -> None:
        self._waiting.setdefault(client, deque()).append(job)

    def _take_waiting(self) -> tuple[str, Callable[[], None]] | None:
        """The next job that may run: of the client whose last one was taken longest ago. Under the lock."""
        client = next((c for c in self._waiting if self._taken[c] < self._each), None)
        if client is None:
            return None
        jobs = self._waiting.pop(client)
        job = jobs.popleft()
        if jobs:
            self._waiting[client] = jobs
        self._taken[client] += 1
        return client, job

    def _start(self, client: str, job: Callable[[], None]) -> None:
        """Start a thread for the job; where the system allows no more, it waits for one of those that live."""
        name = f"{self._name}-{self._live + 1}"
        try:
            threading.Thread(target=self._work, args=(client, job), name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._live:
                raise limit_reached(error) or error from None
            self._wait(client, job)
        else:
            self._live += 1
            self._taken[client] += 1

    def _work(self, client: str, job: Callable[[], None]) -> None:
        box: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        todo: tuple[str, Callable[[], None]] | None = (client, job)
        del job
        while todo is not None:
            client = todo[0]
            todo[1]()
            del todo  # it holds its answer, which must not last until the next job
            todo = self._next(client, box)

    def _next(
        self, client: str, box: "queue.SimpleQueue[tuple[str, Callable[[], None]]]"
    ) -> tuple[str, Callable[[], None]] | None:
        """The next job for the thread of this box, after one of `client`; None: it was idle for long and has left."""
        with self._lock:
            self._taken[client] -= 1
            todo = self._take_waiting()
            if not self._taken[client]:
                del self._taken[client]
            if todo is not None:
                return todo
            self._idle.append(box)
        try:
            return box.get(timeout=self._idle_s)
        except queue.Empty:
            with self._lock:
                if box in self._idle:
                    self._idle.remove(box)
                    self._live -= 1
                    return None
        return box.get()  # a job came in that very moment


def on_hangup(action: Callable[[], None]) -> None:
    """Call `action` on the running loop at each SIGHUP (main thread only)."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)


class StopSignal:
    """SIGTERM and SIGINT as an event. The first asks for an ordered end, the second forces it."""

    def __init__(self) -> None:
        """Install the handlers on the running loop (main thread only)."""
        self.asked = asyncio.Event()
        self.number = 0  # the first signal, 0 if the end came otherwise
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def wait(self) -> None:
        """Until the first signal."""
        await self.asked.wait()

    def _on_signal(self, number: int) -> None:
        if self.asked.is_set():
            _log.warning("second signal: stopping at once")
            os._exit(128 + number)
        self.number = number
        self.asked.set()

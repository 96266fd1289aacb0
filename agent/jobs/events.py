"""Events of a job, and what the audit log says when they end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from p2pcache.io.http.audit_log import Entry
from p2pcache.io.tasks import mark_retrieved

Events = AsyncGenerator[dict[str, object], None]
WAITING_S = 3.0  # between two `waiting` events; a longer silence looks like a fault
# Fields of `resolved` and `done` that the audit line has, too.
_AUDITED = ("digest", "bytes", "bytes_uploaded", "generation", "chunks_bad")


async def audited(entry: Entry, events: Events) -> Events:
    """Pass the events on; write the audit line when they end, well or badly."""
    with entry:
        async with contextlib.aclosing(events):
            async for event in events:
                if event["event"] in ("resolved", "done"):
                    entry.fields |= {key: event[key] for key in _AUDITED if key in event}
                yield event


async def while_waiting(
    work: "asyncio.Future[Any]", waits_for: Callable[[], str], why: Callable[[], str] = str
) -> Events:
    """Yield a `waiting` event every few seconds until `work` is done. Closing the generator cancels `work`.

    Args:
        work: is awaited; its result stays with it.
        waits_for: says, for people, whose answer is awaited now.
        why: says what went wrong last; "": nothing is known.
    """
    began = time.monotonic()
    work.add_done_callback(mark_retrieved)
    try:
        while not work.done():
            await asyncio.wait([work], timeout=WAITING_S)
            if not work.done():
                seconds = round(time.monotonic() - began, 1)
                known = {"trouble": trouble} if (trouble := why()) else {}
                yield {"event": "waiting", "for": waits_for(), "seconds": seconds, **known}
    finally:
        work.cancel()

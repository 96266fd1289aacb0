"""NDJSON answers: one event a line, and what the audit log says when they end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from aiohttp import web

from p2pcache.errors import P2PCacheError
from p2pcache.io.http.audit_log import Entry

Events = AsyncGenerator[dict[str, object], None]
WAITING_S = 3.0  # silence for longer looks like a fault
_TOLD = (
    "digest",
    "bytes",
    "bytes_uploaded",
    "generation",
    "chunks_bad",
)  # of `done`, for the audit


async def audited(entry: Entry, events: Events) -> Events:
    """The same events; the audit line is written when they end, however they end."""
    with entry:
        async with contextlib.aclosing(events):
            async for event in events:
                if event["event"] in ("resolved", "done"):
                    entry.fields |= {key: event[key] for key in _TOLD if key in event}
                yield event


async def stream(request: web.Request, events: Events) -> web.StreamResponse:
    """Send the events. An error before the first one is a plain HTTP error, later the last event."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    async with contextlib.aclosing(events):
        with contextlib.suppress(
            ConnectionResetError
        ):  # the client left: it stops waiting, no more
            try:
                async for event in events:
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(msgspec.json.encode(event) + b"\n")
            except P2PCacheError as error:
                if not response.prepared:
                    raise
                last = {"event": "error", "code": error.exit_code, "message": str(error)}
                await response.write(msgspec.json.encode(last) + b"\n")
            await response.write_eof()
    return response


async def while_waiting(
    work: "asyncio.Future[Any]", for_whom: Callable[[], str], why: Callable[[], str] = str
) -> Events:
    """A `waiting` event every few seconds until `work` is done; whoever stops listening cancels it.

    `why`: what keeps it waiting, "" if that isn't known.
    """
    began = time.monotonic()
    work.add_done_callback(_heard)
    try:
        while not work.done():
            await asyncio.wait([work], timeout=WAITING_S)
            if not work.done():
                seconds = round(time.monotonic() - began, 1)
                known = {"trouble": trouble} if (trouble := why()) else {}
                yield {"event": "waiting", "for": for_whom(), "seconds": seconds, **known}
    finally:
        work.cancel()


def _heard(work: "asyncio.Future[Any]") -> None:
    """Its error was told, or nobody is left to be told."""
    if not work.cancelled():
        work.exception()

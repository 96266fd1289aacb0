"""NDJSON answers: one event a line."""

import contextlib

import msgspec
from aiohttp import web

from p2pcache.agent.jobs.events import Events
from p2pcache.errors import P2PCacheError


async def stream(request: web.Request, events: Events) -> web.StreamResponse:
    """Send the events as the response.

    An error before the first event becomes a plain HTTP error, a later one the last event.
    """
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    async with contextlib.aclosing(events):
        with contextlib.suppress(ConnectionResetError):  # the client has left
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

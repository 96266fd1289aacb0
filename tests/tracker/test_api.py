"""The tracker's port against bytes of strangers."""

import asyncio

import aiohttp
import pytest

from tests.io import strangers_kit
from tests.tracker.kit import tracker


async def test_the_tracker_refuses_what_strangers_send(caplog: pytest.LogCaptureFixture) -> None:
    async with tracker() as app:
        host, port = app.address.split(":")
        await strangers_kit.check(
            lambda: asyncio.open_connection(host, int(port)), lambda: caplog.records
        )


async def test_the_members_door_packs_and_unpacks_nothing() -> None:
    """A packed message of a few kilobytes would unpack to the largest that is allowed."""
    async with tracker() as app, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"http://{app.address}/v1/member", compress=15) as socket:
            assert not socket.compress
        reader, writer = await asyncio.open_connection(*app.address.split(":"))
        asked = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        writer.write(strangers_kit.UPGRADE + asked)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"101" in head
        assert b"deflate" not in head
        await reader.readexactly(2)
        writer.write(b"\xc2\x85\0\0\0\0hello")  # a packed frame (RSV1) all the same
        async with asyncio.timeout(20):
            rest = await reader.read()
        assert b"\x03\xea" in rest or not rest, "a protocol error (1002), or simply the end"
        writer.close()

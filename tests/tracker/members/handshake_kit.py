"""The member's half of a handshake with a tracker, step by step."""

import contextlib
import os
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Hello, Secret, hello

KEY = Secret(b"0123456789abcdef0123456789abcdef")


@contextlib.asynccontextmanager
async def dialled(
    address: str, origin: str = "127.0.0.1"
) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, Challenge]]:
    connector = aiohttp.TCPConnector(local_addr=(origin, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        async with http.ws_connect(f"http://{address}/v1/member") as socket:
            yield socket, msgspec.msgpack.decode(await socket.receive_bytes(), type=Challenge)


def answer(
    challenge: Challenge, *, node: int = 5, role: str = "agent", secret: Secret = KEY
) -> Hello:
    return hello(secret, challenge, nonce=os.urandom(NONCE_BYTES), node=node, role=role)

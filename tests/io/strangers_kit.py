"""What strangers send to a listener: raw requests that must end in a refusal, never in a 500 or a trace."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

BOMB = zlib.compress(bytes(8 << 20), 9)
UPGRADE = (
    b"GET /v1/member HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def request(
    method: str = "POST", path: str = "/v1/pull", *headers: bytes, body: bytes = b"{}"
) -> bytes:
    """One request that asks for the connection's end."""
    lines = (
        b"%s %s HTTP/1.1" % (method.encode(), path.encode("latin-1")),
        b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body), *headers,
    )  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes, method: str = "POST", path: str = "/v1/pull") -> bytes:
    """A request whose body says its own lengths."""
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head % (method.encode(), path.encode()) + body


PACKED = [
    request("POST", path, b"Content-Encoding: " + coding, body=body)
    for path in ("/v1/pull", "/healthz", "/v1/manifests", "/nowhere")
    for coding, body in ((b"gzip", BOMB), (b"deflate", b"xx"), (b"br", b"x"), (b"zstd", b"x"),
                         (b"identity, gzip", b"x"), (b"unheard-of", b"x"))
]  # fmt: skip

ODD = [
    request("GET", "/healthz", b"X-Name: \xe9t\xe9"),
    request("GET", "/healthz", "X-Name: \u00e9t\u00e9".encode()),
    request("GET", "/h\xe9althz"),
    request("GET", "/v1/models?ref=\xe9"),
    request("GET", "/healthz", b"Host: \xff\xff"),
    request("POST", "/v1/pull", b"Content-Type: application/\xe9"),
    request("POST", "/v1/pull", b"Authorization: Bearer \xe9\xff"),
    request("POST", "/v1/pull", b"Expect: \xe9"),
    request("POST", "/v1/pull", body=b'{"ref":"\\ud800"}'),
    request("POST", "/v1/pull", body=b'{"ref":"a\\u0000b:v1"}'),
    request("POST", "/v1/pull", body=b"\xff\xfe"),
    request("GET", "/v1/history?limit=99999999999999999999999"),
    request("GET", "/v1/history?limit=-1"),
    request("GET", "/v1/history?limit=%FF"),
    request("GET", "/v1/model?ref=%FF%ED%A0%80"),
    request("GET", "/v1/locate?ref=%00"),
    request("GET", "/v1/swarm?digest=%ED%A0%80"),
    request("GET", "/v1/explain?ref=" + "a" * 5000),
    request("DELETE", "/%ED%A0%80"),
    request("GET", "//%2e%2e/%0d%0aX: y".replace(" ", "%20")),
    request("BREW", "/healthz"),
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    chunked(b"zz\r\n"),
    chunked(b"5\r\nab"[:3] + b"ab\r\n0\r\n\r\nGET"),
    chunked(b"-1\r\n\r\n"),
    chunked(b"2\r\n{}XX0\r\n\r\n"),
    chunked(b"fffffffffffffffffff\r\n"),
    UPGRADE.replace(b"websocket", b"websock\xe9t") + b"\r\n",
    UPGRADE.replace(b"dGhl", b"dG\xe9l") + b"\r\n",
    UPGRADE.replace(b"Version: 13", b"Version: \xff") + b"\r\n",
    UPGRADE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short") + b"\r\n",
    UPGRADE + b"Sec-WebSocket-Protocol: \xe9\r\n\r\n",
    UPGRADE + b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99\r\n\r\n\x88\x00",
]  # fmt: skip


async def status(dial: Dial, sent: bytes) -> int:
    """The status of the first answer; 0: the connection ended without one."""
    reader, writer = await dial()
    try:
        async with asyncio.timeout(20):
            writer.write(sent)
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def check(dial: Dial, log: Callable[[], list[logging.LogRecord]]) -> None:
    """Send all of it to one listener.

    Args:
        dial: connects to the listener.
        log: what was logged so far; what `io.log` silences (aiohttp's own) doesn't count.
    """
    for sent in PACKED:
        assert await status(dial, sent) == 415, sent[:200]
    for sent in ODD:
        assert await status(dial, sent) < 500, sent[:200]
    assert await status(dial, request("GET", "/healthz", b"Content-Encoding: identity")) == 200
    ours = [record for record in log() if record.name != "aiohttp.server"]
    assert [record.message for record in ours if record.exc_info] == []

"""A plain HTTP server for rivals: the model's files, leases on its pieces, and a BitTorrent tracker.

    python -m loadtest.storm.webserver ADDRESS FOLDER PIECES

`GET /NAME/PATH` a file (ranges, sendfile) · `GET /lease` the next piece that nobody has read yet, 204
when all are taken · `GET /announce` everybody who announced before.
"""

import asyncio
import ipaddress
import signal
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

PORT = 8080
ANNOUNCE_S = 5  # who came in the same instant hears of the others soon


def make_app(folder: Path, pieces: int) -> web.Application:
    """The application; `folder` is served below its own name."""
    left = iter(range(pieces))
    peers: dict[bytes, None] = {}

    async def lease(_: web.Request) -> web.Response:
        piece = next(left, None)
        return web.Response(status=204) if piece is None else web.Response(text=str(piece))

    async def announce(request: web.Request) -> web.Response:
        import libtorrent  # late: plain HTTP does without the extra

        address = ipaddress.ip_address(request.remote or "")
        me = address.packed + int(request.query["port"]).to_bytes(2, "big")
        others = b"".join(peer for peer in peers if peer != me)
        peers[me] = None
        body: Any = {"interval": ANNOUNCE_S, "min interval": ANNOUNCE_S, "peers": others}
        return web.Response(body=libtorrent.bencode(body))

    app = web.Application()
    app.router.add_get("/lease", lease)
    app.router.add_get("/announce", announce)
    app.router.add_static(f"/{folder.name}", folder)
    return app


async def _serve(address: str, folder: Path, pieces: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(make_app(folder, pieces), access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, address, PORT).start()
    print("ready", flush=True)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

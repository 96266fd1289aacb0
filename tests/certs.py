"""A throw-away CA for tests, and a relay that writes down all that passes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.protocol.certificate_identity import Role
from p2pcache.io.security import ca
from p2pcache.io.security.tls import Tls


class Files(NamedTuple):
    """The three settings of a daemon in mTLS mode."""

    tls_cert: str
    tls_key: str
    tls_ca: str

    def flags(self) -> list[str]:
        """As they are given on a command line."""
        return ["--tls-cert", self.tls_cert, "--tls-key", self.tls_key, "--tls-ca", self.tls_ca]


class Authority:
    """A CA in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = ca.init(folder, cluster="test")
        self._batch = 0

    def files(self, name: str, role: Role = "agent", *, days: float = 30) -> Files:
        """Fresh files for a member."""
        self._batch += 1
        out = self.folder / str(self._batch)
        made = ca.issue(self.folder, name, role=role, hosts=["127.0.0.1"], days=days, out=out)
        return Files(str(made.cert), str(made.key), str(self.ca))

    def expired(self, name: str, role: Role = "agent") -> Files:
        """Files of a certificate that has just expired."""
        files = self.files(name, role, days=1 / 86400)
        time.sleep(2)
        return files

    def tls(self, name: str, role: Role = "agent") -> Tls:
        """A member's certificate, loaded."""
        return Tls(self.files(name, role), role)


class Tap:
    """A TCP relay in front of an address; `seen` is everything that passed, both ways."""

    def __init__(self) -> None:
        self.address = ""
        self.seen = bytearray()


@contextlib.asynccontextmanager
async def tapped(host: str, port: int) -> AsyncIterator[Tap]:
    """Listen on a free port and relay to `host:port`."""
    tap = Tap()
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    tap.seen += data
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        loop = asyncio.get_running_loop()
        for one in (loop.create_task(pipe(reader, back)), loop.create_task(pipe(there, writer))):
            tasks.add(one)
            one.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    tap.address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield tap
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next turn

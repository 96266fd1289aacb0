"""A stand-in for an inference engine: some CPU, a little disk, a small answer, and vLLM's metric."""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

from aiohttp import web
from blake3 import blake3
from prometheus_client import CollectorRegistry, Histogram, generate_latest

METRIC = "vllm:time_to_first_token_seconds"
WORK_BYTES = 4 << 20  # hashed for each answer: 1 to 2 ms of one core
DISK_BYTES = 64 << 10  # read from the disk itself, not from the page cache
FILE_BYTES = 64 << 20
ANSWER_BYTES = 32 << 10
BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 1, 2, 5)


class Engine:
    """Answers one request after the other, as a batch of one would."""

    def __init__(self, folder: Path) -> None:
        """Make the file that answers read from."""
        path = folder / "engine.data"
        path.write_bytes(os.urandom(FILE_BYTES))
        self._fd = os.open(path, os.O_RDONLY)
        os.fsync(self._fd)
        self._work = bytes(WORK_BYTES)
        self._registry = CollectorRegistry()
        self._latency = Histogram(
            METRIC, "as vLLM has it", registry=self._registry, buckets=BUCKETS
        )

    def application(self) -> web.Application:
        """`/answer` and `/metrics`."""
        app = web.Application()
        app.add_routes([web.get("/answer", self.answer), web.get("/metrics", self.metrics)])
        return app

    async def answer(self, _request: web.Request) -> web.Response:
        """One answer."""
        came = time.monotonic()
        await asyncio.to_thread(self._think)
        self._latency.observe(time.monotonic() - came)
        return web.Response(body=bytes(ANSWER_BYTES))

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=generate_latest(self._registry))

    def _think(self) -> None:
        at = random.randrange(FILE_BYTES // DISK_BYTES) * DISK_BYTES
        os.posix_fadvise(self._fd, at, DISK_BYTES, os.POSIX_FADV_DONTNEED)
        os.pread(self._fd, DISK_BYTES, at)
        blake3(self._work).digest()


if __name__ == "__main__":
    web.run_app(Engine(Path(sys.argv[1])).application(), port=int(sys.argv[2]), print=None)

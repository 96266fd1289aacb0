"""The storm's storage: SeaweedFS in a namespace of its own, with the fault proxy before it if wanted."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil

from loadtest.kit.faultproxy import FaultProxy
from loadtest.kit.netns import Host
from loadtest.kit.seaweed import Seaweed

BUCKET = "models"
PORTS = range(12_000, 21_000, 6)  # of the S3 endpoint; its neighbours serve the rest
PROXY_PORT = 8000


class OriginServer:
    """An S3 server on a host, with the faults it can have. A context manager."""

    def __init__(self, host: Host, folder: Path, *, proxy: bool, latency_s: float = 0.0) -> None:
        """Describe it.

        Args:
            host: where it runs.
            folder: made; holds its data.
            proxy: only with it can it fail.
            latency_s: by how much its link is longer than the others, one way. The proxy holds each answer back for a
                round trip; the bytes of an answer then flow as on a short link.
        """
        self._stack = ExitStack()
        # Namespaces don't keep storms apart here: weed puts sockets named by port into /tmp.
        port = PORTS[os.getpid() % len(PORTS)]
        folder.mkdir(parents=True)
        self._s3 = Seaweed(
            folder, address=host.address, port=port, prefix=host.prefix, buckets=[BUCKET]
        )
        self._proxy = (
            FaultProxy(folder, (host.address, port), listen=(host.address, PROXY_PORT),
                       prefix=host.prefix)
            if proxy or latency_s else None
        )  # fmt: skip
        self._latency_s = latency_s
        self.url = self._s3.url(BUCKET)

    @property
    def environ(self) -> dict[str, str]:
        """What its clients need in their environment."""
        found = self._s3.env()
        return found | {"AWS_ENDPOINT_URL": self._proxy.endpoint} if self._proxy else found

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self._s3)
            if self._proxy is not None:
                self._stack.enter_context(self._proxy)
            if self._latency_s:
                self.fault("latency", delay=2 * self._latency_s)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sent_bytes(self) -> int:
        """Body bytes of reads so far: by the server's own counter, or what the proxy let through.

        Under faults only the proxy knows: the server also counts what the client never got.
        """
        if self._proxy is not None:
            return int(self._proxy.counters()["blob_bytes"])
        return self._s3.counters().sent

    def fault(
        self, kind: str, *, seconds: float | None = None, key: str = "", delay: float = 0.0
    ) -> None:
        """Begin to fail (see loadtest/kit/faultproxy.py for the kinds)."""
        assert self._proxy is not None, "this origin has no fault proxy"
        self._proxy.fault(kind, seconds=seconds, key=key, delay=delay)

    def cpu_s(self) -> float:
        """CPU seconds of the server so far."""
        root = psutil.Process(self._s3.pid)
        times = [p.cpu_times() for p in (root, *root.children(recursive=True))]
        return float(sum(t.user + t.system for t in times))

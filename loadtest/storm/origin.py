"""The storm's storage: SeaweedFS in a namespace of its own."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil

from loadtest.netns import Host
from loadtest.seaweed import Seaweed

BUCKET = "models"
S3_PORT = 8333  # and its neighbours: the namespace is its own


class OriginServer:
    """An S3 server on a host, with the faults it can have. A context manager."""

    def __init__(self, host: Host, folder: Path) -> None:
        """Describe it; `folder` is made and holds its data."""
        self._stack = ExitStack()
        folder.mkdir(parents=True)
        self._s3 = Seaweed(
            folder, address=host.address, port=S3_PORT, prefix=host.prefix, buckets=[BUCKET]
        )
        self.url = self._s3.url(BUCKET)

    @property
    def environ(self) -> dict[str, str]:
        """What its clients need in their environment."""
        return self._s3.env()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._s3)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sent_bytes(self) -> int:
        """Body bytes of object reads so far, by the server's own counter."""
        return self._s3.counters().sent

    def cpu_s(self) -> float:
        """CPU seconds of the server so far."""
        root = psutil.Process(self._s3.pid)
        times = [p.cpu_times() for p in (root, *root.children(recursive=True))]
        return float(sum(t.user + t.system for t in times))

"""Sends an indexed directory to an agent, whose cache takes it before the origin does."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.errors import NotFound
from p2pcache.io.deadline_thread import Stopped
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.indexing import Progress, index_directory
from p2pcache.io.http.client import AgentClient

SEND_THREADS = 4  # blobs at once to the agent, which proves and writes each on its own thread


class Indexed(NamedTuple):
    """A hashed directory."""

    layout: Layout
    encoded: bytes  # its manifest
    sources: dict[str, Path]  # the file behind each path of the model


def indexed(
    directory: Path,
    progress: Callable[[Progress], None] | None = None,
    *,
    sha256: bool = False,
) -> Indexed:
    """Hash a directory; arguments and errors are those of `index_directory`."""
    manifest, sources = index_directory(directory, progress=progress, sha256=sha256)
    return Indexed(Layout(manifest), encode(manifest), sources)


class Sending:
    """The blobs that the agent's cache lacks, a few at a time."""

    def __init__(self, client: AgentClient, indexed: Indexed) -> None:
        """Offer the model to the agent.

        Raises:
            NotFound: the agent asks for something that isn't of this model.
            P2PCacheError: the agent's own error.
        """
        layout = indexed.layout
        self._client = client
        self._digest = layout.digest
        self._lock = threading.Lock()
        self._failed = threading.Event()
        self._sent = 0
        self._files = {
            layout.blobs[number].id: (indexed.sources[path], layout.blobs[number].size)
            for path, number in layout.blob_of_file.items()
        }
        offer = client.offer(indexed.encoded)
        self._missing = [str(item["blob"]) for item in offer.get("missing", [])]
        for blob in self._missing:
            if blob not in self._files:
                raise NotFound(
                    f"the agent asks for blob {blob[:64]!a}, which this model doesn't have"
                )

    @property
    def bytes(self) -> int:
        """Bytes to send."""
        return sum(self._files[blob][1] for blob in self._missing)

    def send_blobs(self, tell: Callable[[int], None]) -> None:
        """Send all blobs.

        Args:
            tell: called with the bytes sent so far; may raise to stop.

        Raises:
            P2PCacheError: the first error of any blob.
        """

        def count(size: int) -> None:
            with self._lock:
                self._sent += size
            if self._failed.is_set():
                raise Stopped
            tell(self._sent)

        def send(blob: str) -> None:
            path, size = self._files[blob]
            try:
                count(0)
                with disk_errors(str(path)), path.open("rb") as file:
                    self._client.put_blob(self._digest, blob, file, size, count)
            except BaseException:
                self._failed.set()
                raise

        with ThreadPoolExecutor(SEND_THREADS, thread_name_prefix="send") as pool:
            futures = [pool.submit(send, blob) for blob in self._missing]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, Stopped)), errors[0])

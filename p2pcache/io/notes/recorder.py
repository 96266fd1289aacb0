"""`events.jsonl`: the events of a swarm's scheduler on disk, so that they can be replayed elsewhere."""

import dataclasses
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from p2pcache.core.scheduler import recording
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e

log = logging.getLogger(__name__)

BUFFER_BYTES = 256 << 10  # one short write into the page cache for some 3,000 events
SUFFIX = ".events.jsonl"


class Recorder:
    """One scheduler's recording, on the loop's thread. A disk error ends the recording, not the pull."""

    def __init__(self, folder: Path, limit_bytes: int, head: recording.Head) -> None:
        """Open `FOLDER/DIGEST-NODE-MILLISECONDS.events.jsonl`.

        Args:
            folder: made if missing, closed to other users.
            limit_bytes: of all recordings in it. One takes at most half; the oldest make room.
            head: the first line.
        """
        self._left = limit_bytes // 2
        self._file: BinaryIO | None = None
        begun_ms = time.time_ns() // 1_000_000
        name = f"{head.digest[:12]}-{head.node[:8]}-{begun_ms}{SUFFIX}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_room(folder, limit_bytes - self._left)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(folder / name, flags, 0o600)
            self._file = os.fdopen(descriptor, "wb", BUFFER_BYTES)
        except OSError as error:
            log.warning("can't record into %s: %s", folder, error.strerror)
            return
        self._write(recording.head_line(head))

    def record(self, now: float, event: e.Event, commands: Sequence[c.Command]) -> None:
        """Record an event and the commands that the scheduler returned for it."""
        if self._file is not None:
            self._write(recording.step_line(now, event, commands))
        if any(isinstance(command, c.Finished) for command in commands):
            self.close()

    def close(self) -> None:
        """End the recording, for the pull is over or paused. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("the recording is incomplete: %s", error.strerror)

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        self._left -= len(line)
        if self._left < 0:
            log.warning("the recording is full: it ends here (record_bytes)")
            self.close()
            return
        try:
            self._file.write(line)
        except OSError as error:
            log.warning("the recording ends here: %s", error.strerror)
            self._file = None


def settings_of(settings: object) -> dict[str, int | float]:
    """The settings of a decider, for a recording's first line."""
    assert dataclasses.is_dataclass(settings)
    assert not isinstance(settings, type)
    return dataclasses.asdict(settings)


def _make_room(folder: Path, limit_bytes: int) -> None:
    """Remove the oldest recordings until the rest fits into `limit_bytes`."""
    found = sorted(
        ((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob(f"*{SUFFIX}")),
        reverse=True,
    )  # fmt: skip
    total = 0
    for _, size, path in found:
        total += size
        if total > limit_bytes:
            path.unlink()

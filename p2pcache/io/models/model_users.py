"""Which models other processes have open or mapped: nobody removes those."""

import contextlib
import os
from collections.abc import Collection
from typing import NamedTuple

from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.agent_db import Records
from p2pcache.io.host import file_users
from p2pcache.io.host.file_users import FileId

MOST_NAMED = 3  # processes in a message


class Users(NamedTuple):
    """The result of a look."""

    held: dict[str, str]  # by digest of a model that is in use: by whom, for people
    unsure: str  # why more models may be in use, for people; "": none is


NOBODY = Users({}, "")


class ModelUsers:
    """Looks for processes that use the files of this cache's models."""

    def __init__(self, blobs: BlobPool, records: Records) -> None:
        self._blobs = blobs
        self._records = records

    def of(self, digests: Collection[str]) -> Users:
        """Which of these models are in use.

        A blob of several models counts for the one whose tree the process opened it by. It blocks.
        """
        own = {digest: set(self._records.own_blobs(digest)) for digest in digests}
        files = {
            file: blob
            for digest in digests
            for blob, _ in self._records.blobs_of(digest)
            if (file := self._file(blob)) is not None
        }
        seen = file_users.look(files)
        held: dict[str, str] = {}
        for digest in digests:
            who = sorted({
                use.process for use in seen.uses
                if files[use.file] in own[digest] or digest in use.path
            })  # fmt: skip
            if who:
                more = f" and {len(who) - MOST_NAMED} more" if len(who) > MOST_NAMED else ""
                held[digest] = ", ".join(who[:MOST_NAMED]) + more
        if not seen.blind:
            return Users(held, "")
        unsure = ""
        for digest in digests:
            if digest not in held:
                leased = [self._leased(blob) for blob in own[digest]]
                if True in leased:
                    held[digest] = f"a process that this one doesn't see: {seen.blind}"
                elif None in leased:
                    unsure = seen.blind
        return Users(held, unsure)

    def _file(self, blob: str) -> FileId | None:
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(blob, dir_fd=folder, follow_symlinks=False)
                return info.st_dev, info.st_ino
        return None

    def _leased(self, blob: str) -> bool | None:
        """Whether anybody else has a blob open; None: nobody can say."""
        with self._blobs.lock:
            self._blobs.files.drop(blob)  # our own would count
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                held = file_users.held_by_anybody(blob, folder)
                # It may be us, who serve it to a peer. To look at what we have open isn't cheap, and few files are.
                return None if held and self._file(blob) in file_users.opened_here() else held
        return False

    @property
    def _folders(self) -> tuple[int, int]:
        return self._blobs.folders.blobs, self._blobs.folders.partial

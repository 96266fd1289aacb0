"""The two targets of an import: an agent, whose cache takes the model too, or the storage itself."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from p2pcache.cli.support.background import Watched
from p2pcache.cli.support.client_options import ClientSettings, cache_dir
from p2pcache.cli.support.progress import Event, Reporter, follow
from p2pcache.core.format.file_filter import pick_paths
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import make_manifest
from p2pcache.errors import UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk.cache_dir import check_owner
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.http.client import AgentClient
from p2pcache.io.imports.import_folder import FOLDER, ImportFolder, folder_name, sweep
from p2pcache.io.imports.importing import Importing, record_of
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Sources


class ImportTarget(Protocol):
    """Where an import goes."""

    @property
    def goes_on(self) -> str:
        """What becomes of an import whose command is interrupted now, in words for people."""

    def import_from(
        self, url: str, ref: Ref, reporter: Reporter, *, spelling: str, include: tuple[str, ...],
        exclude: tuple[str, ...], copy: bool, force: bool,
    ) -> Event:  # fmt: skip
        """Import, move the tag, and return the `done` event.

        Args:
            url: where from.
            ref: the tag that moves.
            reporter: gets the progress events.
            spelling: how its name is written.
            include: patterns of files to take; empty: all.
            exclude: patterns of files to leave out.
            copy: store the blobs, too.
            force: move the tag even if somebody else moves it meanwhile.
        """


class AgentImport:
    """An import by an agent, which reads the source with its own credentials and seeds the model."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client

    @property
    def goes_on(self) -> str:
        """The agent soon ends what nobody follows."""
        return "the agent keeps what it has read: import again to go on"

    def import_from(
        self, url: str, ref: Ref, reporter: Reporter, *, spelling: str, include: tuple[str, ...],
        exclude: tuple[str, ...], copy: bool, force: bool,
    ) -> Event:  # fmt: skip
        """As `ImportTarget.import_from`."""
        events = self._client.import_model(
            url,
            f"{spelling}:{ref.tag}",
            include=list(include),
            exclude=list(exclude),
            copy=copy,
            force=force,
        )
        return follow(events, reporter)


class DirectImport:
    """An import without an agent: from the source to the storage."""

    def __init__(self, settings: ClientSettings, sources: dict[str, SourceSettings]) -> None:
        """Open the storage.

        Raises:
            UsageError: no URL, or not one of a storage.
            NotFound: a directory that doesn't exist.
        """
        if not settings.origin:
            raise UsageError(
                "no agent here, and no storage for the tag: set P2PCACHE_ORIGIN (or --origin), for example "
                "s3://models, or start 'p2pcache agent'"
            )
        self._repo = OriginRepo(open_origin(settings.origin))
        self._sources = Sources(sources)
        self._cache = cache_dir(settings)

    @property
    def goes_on(self) -> str:
        """Nothing."""
        return "no tag was moved; import again to go on with the files that weren't read"

    def import_from(
        self, url: str, ref: Ref, reporter: Reporter, *, spelling: str, include: tuple[str, ...],
        exclude: tuple[str, ...], copy: bool, force: bool,
    ) -> Event:  # fmt: skip
        """As `ImportTarget.import_from`."""
        source, place = self._sources.holding(url)
        check_owner(self._cache)
        folders = self._cache / FOLDER
        sweep(folders)
        folder = ImportFolder(folders / folder_name(source.name, place))
        running: list[Importing] = []
        stop = threading.Event()

        def work(report: Callable[[int, int], None]) -> Event:
            files = source.files(place)
            wanted = set(pick_paths([file.path for file in files], include, exclude))
            files = [file for file in files if file.path in wanted]
            if not copy:
                source.need_parts(files, stop.is_set)
            reading = Importing(source, files, folder, keep=copy, cancelled=stop.is_set)
            running.append(reading)
            hashed = reading.read_files()
            layout = Layout(make_manifest(hashed))
            report(0, 1)
            paths = {number: folder.part(path) for path, number in layout.blob_of_file.items()}
            result = self._repo.push(
                layout, ref, open_blob=lambda number: _opened(paths[number]), spelling=spelling, force=force,
                record=None if copy else record_of(source, files, hashed),
            )  # fmt: skip
            folder.discard()
            return {
                "event": "done", "ref": ref.short, "digest": result.digest, "files": len(files),
                "bytes": layout.manifest.size_bytes, "bytes_read": reading.progress.bytes_read,
                "generation": result.generation,
            }  # fmt: skip

        watched = Watched(work)
        try:
            for _ in watched.progress():
                if running:
                    now = running[0].progress
                    reporter.update(
                        {
                            "event": "progress",
                            "phase": "import",
                            "bytes_done": now.bytes_done,
                            "bytes_total": now.bytes_total,
                        }
                    )
            return watched.result()
        finally:
            stop.set()  # threads that read end soon, and the process doesn't wait for them


def _opened(path: Path) -> int:
    with disk_errors(str(path)):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

"""A model from BitTorrent clients: files arrive in a staging directory, are proved, and are pushed."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from p2pcache.cli.standalone.upload import AgentPush, DirectPush, PushTarget
from p2pcache.cli.support.client_options import Loaded, cache_dir
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.options import DIR
from p2pcache.cli.support.progress import (
    WAITING_S,
    Event,
    Reporter,
    hashing_progress,
)
from p2pcache.core.units import format_bytes, parse_rate
from p2pcache.errors import Conflict, InvalidTorrent, UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk.cache_dir import check_owner
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.torrents.fetching import FILES, Arrived, Fetching, Ways
from p2pcache.io.torrents.metainfo import MAX_TORRENT_BYTES, Metainfo, read_metainfo
from p2pcache.io.torrents.proving import proved

FOLDER = "torrent-imports"  # of the commands' own cache directory
MAGNET = "magnet:"


class TorrentOptions(NamedTuple):
    """The options of an import that only torrents have."""

    peer: tuple[str, ...] = ()
    allow_local: bool = False
    staging: str = ""
    rate: str = ""


def torrent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the fields of `TorrentOptions` to a command as options."""
    for option in (
        click.option("--rate", metavar="RATE", default="", help="Of a torrent: take no more, as 200mbit."),
        click.option(
            "--staging", metavar="DIR", type=DIR, default="",
            help="Of a torrent: where files wait to be proved [default: in the commands' cache directory].",
        ),
        click.option(
            "--allow-local", is_flag=True,
            help="Of a torrent: trackers, web seeds and peers may be on this machine or its link.",
        ),
        click.option("--peer", metavar="HOST:PORT", multiple=True, help="Of a torrent: ask this peer, too."),
    ):  # fmt: skip
        command = option(command)
    return command


def is_torrent(source: str) -> bool:
    """Tell whether an import's source is a torrent file or a magnet link."""
    return source.startswith(MAGNET) or source.endswith(".torrent")


class TorrentImport:
    """One import. Its target is the agent, whose cache takes the model too, or the storage itself."""

    def __init__(self, loaded: Loaded, options: TorrentOptions) -> None:
        """Nothing is asked for yet.

        Raises:
            UsageError: an option can't be understood, or there is nowhere to push to.
        """
        client = find_agent(loaded)
        self._target: PushTarget = (
            AgentPush(client) if client else DirectPush(loaded.settings.origin)
        )
        rate = parse_rate(options.rate) if options.rate else 0
        self._ways = Ways(options.peer, options.allow_local, rate)
        self._base = (
            Path(options.staging) if options.staging else cache_dir(loaded.settings) / FOLDER
        )
        self._in_cache = not options.staging
        self._arrived = False

    @property
    def goes_on(self) -> str:
        """What becomes of an import whose command is interrupted now, in words for people."""
        if self._arrived:
            return self._target.goes_on
        return f"what came stays in {self._base}; run the command again to resume"

    def import_from(
        self, url: str, ref: Ref, reporter: Reporter, *, spelling: str, include: tuple[str, ...],
        exclude: tuple[str, ...], copy: bool, force: bool,
    ) -> Event:  # fmt: skip
        """Download, prove, push; return the `done` event.

        Args:
            url: a torrent file's path, or a magnet link.
            ref: the tag that moves.
            reporter: gets the progress events.
            spelling: how its name is written.
            include: must be empty: a torrent's files are all taken.
            exclude: must be empty.
            copy: must be false: they are all stored.
            force: move the tag even if somebody else moves it meanwhile.

        Raises:
            UsageError: an option that means nothing is given.
            NotAllowed: the cache belongs to another user.
            IntegrityError: the torrent breaks a rule, or its files aren't the model that it names.
            P2PCacheError: target, disk or torrent failed.
        """
        if include or exclude or copy:
            raise UsageError(
                "a torrent is taken and stored whole: leave out --include, --exclude and --copy"
            )
        self._target.check(ref)
        if self._in_cache:
            check_owner(self._base.parent)
        torrent = self._of_magnet(url, reporter) if url.startswith(MAGNET) else _of_file(Path(url))
        staging = self._base / torrent.info_hash
        with _alone(staging):
            with Fetching(self._ways) as fetching:
                steps = fetching.steps_of(torrent, staging)
                read = self._follow(fetching, steps, torrent.name, reporter)
            root = staging / FILES / torrent.name if torrent.folder else staging / FILES
            found = proved(torrent, root, hashing_progress(reporter))
            self._arrived = True
            done = self._target.push(
                ref, found, reporter, spelling=spelling, force=force, repair=False
            )
        shutil.rmtree(staging, ignore_errors=True)
        return {**done, "bytes_read": read}

    def _of_magnet(self, magnet: str, reporter: Reporter) -> Metainfo:
        with Fetching(self._ways) as fetching:
            self._follow(fetching, fetching.metainfo(magnet), "the magnet link", reporter)
            return read_metainfo(fetching.torrent_file())

    def _follow(
        self, fetching: Fetching, steps: Iterator[Arrived], name: str, reporter: Reporter
    ) -> int:
        """Report how a download goes, to its end; return the bytes that came now."""
        first: int | None = None
        done = 0
        moved = said = time.monotonic()
        for at in steps:
            while fetching.left_out:
                reporter.update({"event": "warning", "message": fetching.left_out.pop()})
            if not fetching.has_source:
                raise UsageError(
                    f"{name[:100]} names no tracker, web seed or peer that may be asked; name one with --peer HOST:PORT"
                )
            now = time.monotonic()
            if first is None:
                first = at.bytes_done
            if at.bytes_done != done or at.peers:
                moved = now
            done = at.bytes_done
            if now - moved > WAITING_S and now - said > WAITING_S:
                said = now
                what = f"a peer or web seed of {name[:100]}"
                reporter.update({"event": "waiting", "for": what, "seconds": round(now - moved, 1)})
            if at.bytes_total:
                reporter.update({
                    "event": "progress", "phase": "fetch", "bytes_done": done, "bytes_total": at.bytes_total,
                    "peers": at.peers, "rate": at.rate,
                })  # fmt: skip
        return max(0, done - (first or 0))


def _of_file(path: Path) -> Metainfo:
    try:
        with disk_errors(str(path)):
            if path.stat().st_size > MAX_TORRENT_BYTES:
                raise InvalidTorrent(f"it has over {format_bytes(MAX_TORRENT_BYTES)}")
            data = path.read_bytes()
        return read_metainfo(data)
    except InvalidTorrent as error:
        raise InvalidTorrent(f"{path}: {error}") from None


@contextmanager
def _alone(staging: Path) -> Iterator[None]:
    """Hold a staging directory: two commands would write into each other's files.

    Raises:
        Conflict: another command has it.
    """
    with disk_errors(str(staging), staging):
        staging.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Conflict(
            f"another command imports this torrent into {staging}; wait for it"
        ) from None
    finally:
        os.close(descriptor)

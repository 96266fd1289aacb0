"""Downloads a torrent into a folder, where its bytes wait to be proved: a folder of strangers' bytes, no model yet.

Ended and begun again, it goes on where it was. Pieces that were on disk before are proved again by the torrent's hashes
at the end: after a power cut the notes may say more than the disk has.
"""

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from p2pcache.core.protocol.address import join, split
from p2pcache.errors import InvalidTorrent, NoSpace, P2PCacheError, RemoteProtocolError, UsageError
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.torrents import addresses
from p2pcache.io.torrents.library import libtorrent, new_session
from p2pcache.io.torrents.making import write_whole
from p2pcache.io.torrents.metainfo import MAX_SOURCES, MAX_TORRENT_BYTES, Metainfo

FILES = "files"  # in the folder: what arrives
_NOTE = "resume"  # and what libtorrent knows of it
LOOK_MS = 250  # between two looks, and two events of progress
SAVE_S = 15.0  # between two notes: what a kill costs is read and hashed again
DIAL_S = 10.0  # between two calls to peers of whom none answers
CLOSE_S = 10.0  # for the last note
MAX_MAGNET = 8192  # characters
# A session that accepts nobody still needs a socket to send uTP from.
_OUTWARD: dict[str, object] = {
    "listen_interfaces": "0.0.0.0:0,[::]:0", "enable_incoming_tcp": False, "enable_incoming_utp": False,
}  # fmt: skip


class Ways(NamedTuple):
    """How a torrent may be fetched."""

    peers: tuple[str, ...] = ()  # HOST:PORT of those whom the operator names
    local: bool = False  # trackers, web seeds and peers on this machine and its link are allowed
    bytes_per_s: int = 0  # cap; 0: none


class Arrived(NamedTuple):
    """How far a download is."""

    bytes_done: int
    bytes_total: int
    peers: int  # connected, web seeds too
    rate: float  # bytes per second


class Fetching:
    """One session with one torrent. Use as a context manager."""

    def __init__(self, ways: Ways) -> None:
        """No torrent yet.

        Raises:
            UsageError: libtorrent isn't installed, or a peer is no address.
        """
        self._ways = ways
        self._peers = [_peer(text, local=ways.local) for text in ways.peers]
        self._dialled = 0.0
        self._session = new_session({**_OUTWARD, "download_rate_limit": ways.bytes_per_s})
        if not ways.local:
            self._session.set_ip_filter(addresses.forbidding_filter())
        self._handle: Any = None
        self._folder: Path | None = None
        self.left_out: list[str] = []  # lines about URLs that aren't used
        self.has_source = True  # somebody may be asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the last note and end the session."""
        self._session.pause()
        if self._folder is not None:
            self._save()
            deadline = time.monotonic() + CLOSE_S
            while time.monotonic() < deadline and not self._saved(self._alerts()):
                pass

    # -- a magnet link -------------------------------------------------------------------------------

    def metainfo(self, magnet: str) -> Iterator[Arrived]:
        """Ask peers for the torrent file of a magnet link, until `torrent_file` has it. No byte of a file is asked for.

        Raises:
            InvalidTorrent: it is no magnet link.
        """
        lt = libtorrent()
        try:
            if len(magnet) > MAX_MAGNET:
                raise RuntimeError("it is too long")
            params = lt.parse_magnet_uri(magnet)
        except RuntimeError as error:
            raise InvalidTorrent(f"this is no good magnet link: {error}") from None
        params.save_path = "/nonexistent"  # nothing is written: no file is wanted
        params.flags |= lt.torrent_flags.default_dont_download | lt.torrent_flags.upload_mode
        self._add(params)
        while not self._handle.status().has_metadata:
            self._alerts()
            yield self._arrived()

    def torrent_file(self) -> bytes:
        """What `metainfo` brought, with the magnet link's trackers and web seeds.

        Raises:
            InvalidTorrent: it is too large.
        """
        lt = libtorrent()
        info = self._handle.torrent_file().info_section()
        if len(info) > MAX_TORRENT_BYTES:
            raise InvalidTorrent("the torrent's description is over 64 MiB")
        torrent: dict[bytes, Any] = {b"info": lt.bdecode(info)}
        if trackers := [one["url"].encode() for one in self._handle.trackers()]:
            torrent[b"announce-list"] = [trackers]
        if seeds := [url.encode() for url in self._handle.url_seeds()]:
            torrent[b"url-list"] = seeds
        return bytes(lt.bencode(torrent))

    # -- files ---------------------------------------------------------------------------------------

    def steps_of(self, torrent: Metainfo, folder: Path) -> Iterator[Arrived]:
        """Download all files below `folder`/files.

        Raises:
            NoSpace: the disk can't hold them.
            P2PCacheError: the disk refused.
        """
        lt = libtorrent()
        target = folder / FILES
        with disk_errors(str(folder), folder):
            target.mkdir(parents=True, exist_ok=True)
            _check_space(torrent, target)
        params, resumed = self._params(torrent, folder)
        params.save_path = str(target)
        self._folder = folder
        self._add(params)
        saved = time.monotonic()
        while True:
            alerts = self._alerts()
            self._saved(alerts)
            _raise_disk(alerts)
            status = self._handle.status()
            yield self._arrived()
            if status.is_seeding and status.state == lt.torrent_status.seeding:
                if not resumed:
                    break
                resumed = False  # now prove what was there before we came
                self._handle.force_recheck()
                self._await_check()
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                self._save()
        self._handle.flush_cache()
        while not any(isinstance(one, lt.cache_flushed_alert) for one in self._alerts()):
            yield self._arrived()
        _check_files(torrent, target)

    def _params(self, torrent: Metainfo, folder: Path) -> tuple[Any, bool]:
        """What libtorrent is told, and whether it goes on with an older download."""
        lt = libtorrent()
        params = lt.load_torrent_buffer(torrent.data, {"max_buffer_size": MAX_TORRENT_BYTES})
        with contextlib.suppress(OSError, RuntimeError):
            note = lt.read_resume_data((folder / _NOTE).read_bytes())
            if note.info_hashes == params.ti.info_hashes():
                params.have_pieces = note.have_pieces
                params.verified_pieces = note.verified_pieces
                params.unfinished_pieces = note.unfinished_pieces
                return params, True
        return params, any((folder / FILES).iterdir())

    def _add(self, params: Any) -> None:
        lt = libtorrent()
        params.trackers, refused = addresses.used(params.trackers, local=self._ways.local)
        self.left_out += refused
        params.trackers = params.trackers[:MAX_SOURCES]
        params.url_seeds, refused = addresses.used(params.url_seeds, local=self._ways.local)
        self.left_out += refused
        params.url_seeds = params.url_seeds[:MAX_SOURCES]
        params.http_seeds, params.dht_nodes = [], []
        params.tracker_tiers = [0] * len(params.trackers)
        params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
        params.flags |= lt.torrent_flags.apply_ip_filter
        self.has_source = bool(params.trackers or params.url_seeds or params.peers or self._peers)
        try:
            self._handle = self._session.add_torrent(params)
        except RuntimeError as error:
            raise InvalidTorrent(f"libtorrent refuses the torrent: {error}") from None
        self._dial()

    def _dial(self) -> None:
        """Dial the named peers: libtorrent gives one up that is away for some minutes."""
        self._dialled = time.monotonic()
        for peer in self._peers:
            self._handle.connect_peer(peer)

    def _await_check(self) -> None:
        lt = libtorrent()
        while not any(isinstance(one, lt.torrent_checked_alert) for one in self._alerts()):
            pass

    def _arrived(self) -> Arrived:
        status = self._handle.status()
        if not status.num_peers and time.monotonic() - self._dialled > DIAL_S:
            self._dial()
        return Arrived(
            int(status.total_wanted_done), int(status.total_wanted), int(status.num_peers),
            float(status.download_payload_rate),
        )  # fmt: skip

    def _alerts(self) -> list[Any]:
        self._session.wait_for_alert(LOOK_MS)
        return list(self._session.pop_alerts())

    def _save(self) -> None:
        lt = libtorrent()
        flags = lt.save_resume_flags_t
        self._handle.save_resume_data(int(flags.flush_disk_cache))

    def _saved(self, alerts: list[Any]) -> bool:
        """Whether a note came; it is written."""
        lt = libtorrent()
        for alert in alerts:
            if isinstance(alert, lt.save_resume_data_alert) and self._folder is not None:
                with contextlib.suppress(OSError):  # a full disk: the next start checks all files
                    write_whole(self._folder / _NOTE, lt.write_resume_data_buf(alert.params))
                return True
            if isinstance(alert, lt.save_resume_data_failed_alert):
                return True
        return False


def _peer(text: str, *, local: bool) -> tuple[str, int]:
    """The address of a peer that the operator names.

    Raises:
        UsageError: it is none, or on this machine, which isn't allowed.
    """
    try:
        host, port = split(text)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    except RemoteProtocolError:
        raise UsageError(f"not a peer: {text!r}; expected HOST:PORT") from None
    except OSError as error:
        raise UsageError(f"peer {text!r}: its name isn't resolved: {error}") from None
    address = str(found[0])
    if why := addresses.refusal(f"udp://{join(address, port)}", local=local):
        raise UsageError(f"peer {text!r}: {why}")
    return address, port


def _check_space(torrent: Metainfo, target: Path) -> None:
    """Refuse a torrent that the disk can't hold; what has come already counts."""
    here = sum(file.stat().st_blocks * 512 for file in target.rglob("*") if file.is_file())
    free = shutil.disk_usage(target).free
    short = torrent.size_bytes - here - free
    if short > 0:
        raise NoSpace(
            f"the torrent has {torrent.size_bytes:,} bytes, and {target} has {free:,} free; "
            "name another directory with --staging",
            coming_bytes=torrent.size_bytes, short_bytes=short,
        )  # fmt: skip


def _raise_disk(alerts: list[Any]) -> None:
    lt = libtorrent()
    for alert in alerts:
        if isinstance(alert, (lt.file_error_alert, lt.torrent_error_alert)):
            raise P2PCacheError(f"the disk refused: {alert.message()[:300]}")


def _check_files(torrent: Metainfo, target: Path) -> None:
    """See that there are the torrent's files, of their sizes, and nothing else."""
    root = target / torrent.name if torrent.folder else target
    found = {
        str(path.relative_to(root)): path.lstat().st_size
        for path in root.rglob("*") if path.is_symlink() or not path.is_dir()
    }  # fmt: skip
    if found != {file.path: file.size for file in torrent.files}:
        raise InvalidTorrent(
            f"{root} holds other files than the torrent says; remove {target.parent}"
        )

"""The process that gets parts of a model from another site's agent, over uTP alone, which gives way to other traffic.

    python -m p2pcache.io.torrents.receiving FOLDER PEER DOWNLOAD_BYTES_PER_S

FOLDER has a `torrent`; its files arrive below FOLDER/files, where they wait to be proved by BLAKE3. The process takes
one JSON object a line: `{"want": {PATH: [[START, END], ..]}}`, which replaces what was wanted. It says what came, when
that can be read: `{"came": [[PATH, START, END], ..]}`; `{"failed": WHY}`; and every second `{"peers": N, "bytes": N}`.
It speaks to PEER and to nobody else, sends nothing of the model, trusts no note of an earlier life, and ends when its
input does.
"""

import ipaddress
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from p2pcache.core.protocol.address import split
from p2pcache.io.torrents.finding import TORRENT
from p2pcache.io.torrents.library import libtorrent, limit_process, new_session
from p2pcache.io.torrents.metainfo import LIMITS
from p2pcache.io.torrents.orders import say, work_until_input_ends

FILES = "files"  # in the folder
LOOK_MS = 100
PARTS = 1000  # of one line: a stranger chooses how small pieces are, and names have up to 4 KiB
TELL_S = 1.0
DIAL_S = 5.0  # between two calls to a peer that isn't connected
_REQUESTS = 500  # of 16 KiB in flight: 40 ms at a gigabit and more; a kill loses no more


class Order(msgspec.Struct):
    """What the agent wants."""

    want: dict[str, list[tuple[int, int]]]


def command(folder: Path, peer: str, bytes_per_s: int) -> list[str]:
    """The command of the process; see this module."""
    program = [sys.executable, "-m", "p2pcache.io.torrents.receiving"]
    return [*program, str(folder), peer, str(bytes_per_s)]


class Receiver:
    """The session of one process."""

    def __init__(self, folder: Path, peer: str, bytes_per_s: int) -> None:
        """Nothing is asked for yet."""
        lt = libtorrent()
        category, flags = lt.alert_category, lt.torrent_flags
        self._peer = split(peer)
        self._session = new_session({
            "listen_interfaces": "0.0.0.0:0,[::]:0", "download_rate_limit": bytes_per_s,
            "enable_incoming_tcp": False, "enable_incoming_utp": False, "enable_outgoing_tcp": False,
            "max_out_request_queue": _REQUESTS,
            "alert_mask": int(category.status | category.error | category.storage | category.piece_progress),
        })  # fmt: skip
        self._session.set_ip_filter(_only(self._peer[0]))
        data = (folder / TORRENT).read_bytes()
        params = lt.load_torrent_buffer(data, LIMITS)
        params.save_path = str(folder / FILES)
        params.trackers, params.url_seeds, params.http_seeds, params.dht_nodes = [], [], [], []
        params.flags |= flags.sequential_download | flags.apply_ip_filter
        params.flags &= ~(flags.auto_managed | flags.paused)
        layout = params.ti.layout()
        params.piece_priorities = [0] * layout.num_pieces()  # none is asked for before an order
        root = f"{layout.name()}/"
        self._info, self._layout = params.ti, layout
        self._files = {
            layout.file_path(number).removeprefix(root): number for number in range(layout.num_files())
        }  # fmt: skip
        self._handle = self._session.add_torrent(params)
        self._came: list[
            int
        ] = []  # pieces that are checked, and not yet in their files for certain
        self._flushing: list[int] | None = None
        self._dialled = self._told = 0.0

    def obey(self, order: Order) -> None:
        """Ask for these bytes, and for no others."""
        size = self._layout.piece_length()
        priorities = [0] * self._layout.num_pieces()
        for path, spans in order.want.items():
            first = self._layout.file_offset(self._files[path]) // size
            for start, end in spans:
                for piece in range(first + start // size, first + -(-end // size)):
                    priorities[piece] = 4
        self._handle.prioritize_pieces(priorities)

    def look(self) -> None:
        """Hear what happened, and tell how it goes."""
        lt = libtorrent()
        self._session.wait_for_alert(LOOK_MS)
        for alert in self._session.pop_alerts():
            if isinstance(alert, lt.piece_finished_alert):
                self._came.append(int(alert.piece_index))
            elif isinstance(alert, lt.cache_flushed_alert) and self._flushing is not None:
                for at in range(0, len(self._flushing), PARTS):
                    pieces = self._flushing[at : at + PARTS]
                    say({"came": [self._part(piece) for piece in pieces]})
                self._flushing = None
            elif isinstance(alert, (lt.file_error_alert, lt.torrent_error_alert)):
                say({"failed": alert.message()[:300]})
        if self._came and self._flushing is None:
            self._flushing, self._came = self._came, []
            self._handle.flush_cache()
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        status = self._handle.status()
        if not status.num_peers and now - self._dialled > DIAL_S:
            self._dialled = now
            self._handle.connect_peer(self._peer)
        say({"peers": int(status.num_peers), "bytes": int(status.total_payload_download)})

    def _part(self, piece: int) -> tuple[str, int, int]:
        """The bytes of a file that a piece holds: no piece holds those of two files."""
        size = self._layout.piece_size(piece)
        part = self._info.map_block(piece, 0, size)[0]
        path = self._layout.file_path(part.file_index).partition("/")[2]
        return path, int(part.offset), int(part.offset + part.size)


def _only(host: str) -> Any:
    """A filter that lets one address through."""
    found = libtorrent().ip_filter()
    for net in (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")):
        found.add_rule(str(net[0]), str(net[-1]), 1)
    address = str(ipaddress.ip_address(host))
    found.add_rule(address, address, 0)
    return found


def main(argv: list[str]) -> int:
    """Receive until the input ends."""
    folder, peer, rate = argv
    limit_process()
    try:
        receiver = Receiver(Path(folder), peer, int(rate))
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    work_until_input_ends(receiver, Order)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

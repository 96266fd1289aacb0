"""One side of a torrent that goes over uTP alone, between two hosts of a fabric.

    python -m loadtest.kit.utp ADDRESS TORRENT FOLDER [PEER]

Without PEER it seeds `FOLDER`, prints `ready` and stays until its input ends; with PEER it downloads into `FOLDER`
and prints the seconds from the first packet to the last piece.
"""

import sys
import time
from pathlib import Path
from typing import Any

import libtorrent as lt

from p2pcache.io.torrents.library import new_session

PORT = 6881
_ONLY_UTP = {"enable_outgoing_tcp": False, "enable_incoming_tcp": False}


def main(argv: list[str]) -> int:
    """Seed or download; the exit code is 0."""
    address, torrent, folder, *peer = argv
    session = new_session({**_ONLY_UTP, "listen_interfaces": f"{address}:{PORT}"})
    params: Any = lt.load_torrent_buffer(Path(torrent).read_bytes())
    params.save_path = folder
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    if not peer:
        params.flags |= lt.torrent_flags.seed_mode
    handle = session.add_torrent(params)
    if not peer:
        print("ready", flush=True)
        sys.stdin.read()
        return 0
    began = time.monotonic()
    handle.connect_peer((peer[0], PORT))
    while not handle.status().is_seeding:
        session.wait_for_alert(20)
        session.pop_alerts()
    print(time.monotonic() - began, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

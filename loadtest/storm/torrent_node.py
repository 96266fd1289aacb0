"""One libtorrent session of a rival swarm: a seed, a leech, or a leech that also reads leased pieces.

    python -m loadtest.storm.torrent_node ADDRESS TORRENT FOLDER --slots N [--peer ADDRESS]... [--web URL]

Speaks the words of `contest.Racer`. It dials the peers named when it is told to go; two nodes that dial
each other would throw one of the connections away.
"""

import argparse
import http.client
import signal
import sys
import threading
import urllib.parse
from typing import Any

import libtorrent as lt

PORT = 6881
POLL_MS = 500  # how late it may notice SIGTERM
FETCHERS = 2  # one piece is asked for while another arrives: the origin's link never idles
FETCH_S = 30.0

# Tuned for one swarm of a few dozen fast, near, equally trusted nodes. libtorrent's defaults are for a
# desktop in the internet. docs/lab/measurements-until-0041.md has the alternatives that were tried.
SETTINGS: dict[str, object] = {
    # Nothing but the peers that it is told of, over plain TCP, as our own nodes: uTP yields to other
    # traffic and encryption costs CPU.
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_utp": False, "enable_incoming_utp": False,
    "out_enc_policy": 2, "in_enc_policy": 2,
    # Everybody knows everybody within a second; nobody is dropped for being slow for a while.
    "connections_limit": 500, "connection_speed": 500, "smooth_connects": False,
    "torrent_connect_boost": 255, "peer_turnover": 0,
    # Whoever is unchoked stays so for a while: judging more often only breaks queues off.
    "choking_algorithm": int(lt.choking_algorithm_t.fixed_slots_choker),
    # Short queues for short links: what is asked of one peer can't be asked of another.
    "request_queue_time": 1, "max_allowed_in_request_queue": 2000,
    # The last blocks are asked of several peers as soon as all are asked for.
    "strict_end_game_mode": False,
    # Link sharing is the kernel's business, and TCP/IP's own bytes aren't counted against a limit.
    "mixed_mode_algorithm": 0, "rate_limit_ip_overhead": False,
    "aio_threads": 2, "hashing_threads": 1,  # two cores are shared by all nodes
    "close_redundant_connections": False,  # a finished node goes on serving
    "alert_queue_size": 10_000,
    "alert_mask": int(lt.alert_category.status | lt.alert_category.error | lt.alert_category.storage),
}  # fmt: skip


def main(argv: list[str]) -> int:
    """Serve until SIGTERM."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings: Any = SETTINGS | {
        "listen_interfaces": f"{options.address}:{PORT}", "unchoke_slots_limit": options.slots,
    }  # fmt: skip
    session = lt.session(lt.session_params(settings))
    torrent = lt.torrent_info(options.torrent)
    params = lt.add_torrent_params()
    params.ti, params.save_path = torrent, options.folder
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    handle = session.add_torrent(params)
    try:
        _await(session, lt.torrent_checked_alert)
        print("ready", flush=True)
        sys.stdin.readline()
        for peer in options.peer:
            handle.connect_peer((peer, PORT))
        if options.web:
            for _ in range(FETCHERS):
                threading.Thread(
                    target=_fetch, args=(options.web, torrent, handle), daemon=True
                ).start()
        if not handle.status().is_seeding:
            _await(session, lt.torrent_finished_alert)
        print("done", flush=True)
        while True:
            _alerts(session)
    finally:
        session.pause()
        handle.flush_cache()
        _await(session, lt.cache_flushed_alert)


def _await(session: Any, kind: Any) -> None:
    while not any(isinstance(alert, kind) for alert in _alerts(session)):
        pass


def _alerts(session: Any) -> list[Any]:
    """What happened; a fault of the disk ends the process, others are logged."""
    session.wait_for_alert(POLL_MS)
    found = session.pop_alerts()
    for alert in found:
        if isinstance(alert, (lt.torrent_error_alert, lt.file_error_alert, lt.listen_failed_alert)):
            raise SystemExit(f"libtorrent: {alert.message()}")
    return list(found)


def _fetch(base: str, torrent: Any, handle: Any) -> None:
    """Read leased pieces from the origin until none is left, and give them to the session."""
    web = http.client.HTTPConnection(urllib.parse.urlsplit(base).netloc, timeout=FETCH_S)
    while lease := _get(web, "/lease"):
        piece = int(lease)
        data = b"".join(
            _get(web, "/" + urllib.parse.quote(torrent.layout().file_path(part.file_index)),
                 f"bytes={part.offset}-{part.offset + part.size - 1}")
            for part in torrent.map_block(piece, 0, torrent.piece_size(piece))
        )  # fmt: skip
        handle.add_piece(piece, data, 0)


def _get(web: http.client.HTTPConnection, path: str, part: str = "") -> bytes:
    web.request("GET", path, headers={"Range": part} if part else {})
    return web.getresponse().read()


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torrent_node")
    parser.add_argument("address")
    parser.add_argument("torrent")
    parser.add_argument("folder")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--web", default="")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process that seeds torrents for an agent: it reads published files, and writes none.

    python -m p2pcache.io.torrents.seeding LISTEN UPLOAD_BYTES_PER_S

A process of its own, since strangers speak to it: it has bounded memory, and the agent outlives it. It takes one JSON
object a line: `{"seed": NAME, "torrent": FILE, "folder": DIR}` and `{"drop": NAME}`; and says what became of it:
`{"port": N}` once, `{"seeds": NAME, "hashes": [HEX]}`, `{"failed": NAME, "why": TEXT}`, and every few seconds
`{"peers": N, "uploaded_bytes": N}`. It ends when its input does.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from p2pcache.io.torrents.library import libtorrent, limit_process, new_session
from p2pcache.io.torrents.metainfo import MAX_TORRENT_BYTES
from p2pcache.io.torrents.orders import say, work_until_input_ends

POLL_MS = 200
TELL_S = 5.0
SLOTS = 16  # peers served at once; others have their turn when one is done


class Order(msgspec.Struct):
    """What the agent wants."""

    seed: str = ""  # the agent's name for it
    torrent: str = ""
    folder: str = ""  # has the model's folder `@HEX`
    drop: str = ""  # the agent's name for it


class Seeder:
    """The session of one process."""

    def __init__(self, listen: str, bytes_per_s: int) -> None:
        """Listen for peers, over TCP and uTP.

        Raises:
            RuntimeError: the address can't be listened on.
        """
        lt = libtorrent()
        self._session = new_session({
            "listen_interfaces": listen, "upload_rate_limit": bytes_per_s, "unchoke_slots_limit": SLOTS,
            # Peers tell one another of peers: whom strangers name isn't dialled.
            "enable_outgoing_tcp": False, "enable_outgoing_utp": False,
            # A site is often behind one address, and a client that was killed seems to be connected for a while.
            "allow_multiple_connections_per_ip": True,
            "seed_choking_algorithm": int(lt.seed_choking_algorithm_t.round_robin),
            "listen_system_port_fallback": False, "max_retry_port_bind": 0,
            "active_seeds": -1, "active_limit": -1,
        })  # fmt: skip
        self._handles: dict[str, Any] = {}
        self._told = 0.0

    def listening(self) -> int:
        """Wait for the port.

        Raises:
            RuntimeError: the address can't be listened on.
        """
        lt = libtorrent()
        found: set[str] = set()
        while not found >= {"tcp", "udp"}:
            self._session.wait_for_alert(POLL_MS)
            for alert in self._session.pop_alerts():
                if isinstance(alert, lt.listen_failed_alert):
                    raise RuntimeError(alert.message())  # noqa: TRY004 - alerts are told apart by type
                if isinstance(alert, lt.listen_succeeded_alert):
                    found.add(str(alert.socket_type).rpartition(".")[2].lower())
        return int(self._session.listen_port())

    def obey(self, order: Order) -> None:
        """Do what the agent wants."""
        if order.drop:
            self._drop(order.drop)
        if order.seed and order.seed not in self._handles:
            try:
                self._seed(order)
            except (OSError, RuntimeError) as error:
                say({"failed": order.seed, "why": str(error)})

    def _seed(self, order: Order) -> None:
        lt, flags = libtorrent(), libtorrent().torrent_flags
        data = Path(order.torrent).read_bytes()
        params = lt.load_torrent_buffer(data, {"max_buffer_size": MAX_TORRENT_BYTES})
        params.save_path = order.folder
        params.trackers, params.url_seeds, params.http_seeds = [], [], []
        # Each piece is proved before it is first sent. In upload mode nothing is asked for, so nothing is written.
        params.flags |= flags.seed_mode | flags.upload_mode
        params.flags &= ~(flags.auto_managed | flags.paused)
        handle = self._session.add_torrent(params)
        self._handles[order.seed] = handle
        hashes = params.ti.info_hashes()
        told = [str(hashes.v1)] if hashes.has_v1() else []
        told += [str(hashes.v2)[:40]] if hashes.has_v2() else []  # cut off, as clients announce it
        say({"seeds": order.seed, "hashes": told})

    def _drop(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            self._session.remove_torrent(handle)

    def look(self) -> None:
        """Hear what happened, and tell how it goes."""
        lt = libtorrent()
        self._session.wait_for_alert(POLL_MS)
        for alert in self._session.pop_alerts():
            if isinstance(
                alert, (lt.file_error_alert, lt.hash_failed_alert, lt.torrent_error_alert)
            ):
                self._give_up(alert)
        if time.monotonic() - self._told > TELL_S:
            self._told = time.monotonic()
            states = [handle.status() for handle in self._handles.values()]
            peers = sum(state.num_peers for state in states)
            sent = sum(state.total_payload_upload for state in states)
            say({"peers": peers, "uploaded_bytes": sent})

    def _give_up(self, alert: Any) -> None:
        """The model's files aren't what they were: the agent proves or removes them."""
        for name, handle in list(self._handles.items()):
            if handle == alert.handle:
                self._drop(name)
                say({"failed": name, "why": alert.message()})


def main(argv: list[str]) -> int:
    """Seed until the input ends."""
    listen, rate = argv
    limit_process()
    try:
        seeder = Seeder(listen, int(rate))
        say({"port": seeder.listening()})
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    work_until_input_ends(seeder, Order)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

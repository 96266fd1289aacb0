"""The process that asks other sites' agents for a model's torrent: strangers' answers are read in a process of its own.

    python -m p2pcache.io.torrents.finding NAMESPACE/NAME DIGEST FOLDER HOST:PORT...

HOST:PORT are torrent doors over HTTP. Of the first one that has the model, `torrent` and `manifest` appear in FOLDER,
the latter proved by DIGEST, and one line of JSON says where it is seeded: `{"site": "HOST:PORT", "peer": "IP:PORT"}`.
While an agent makes the torrent it is asked again. Exit codes are ours; the last line on stderr says why.
"""

import http.client
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from p2pcache.core.protocol.address import join, split
from p2pcache.errors import (
    Busy,
    InvalidTorrent,
    NotFound,
    P2PCacheError,
    RemoteProtocolError,
    Unreachable,
)
from p2pcache.io.http.time_limit import in_time
from p2pcache.io.torrents.library import libtorrent, limit_process
from p2pcache.io.torrents.making import write_whole
from p2pcache.io.torrents.metainfo import MAX_TORRENT_BYTES, read_metainfo

TORRENT, MANIFEST = "torrent", "manifest"  # in the folder
ANSWER_S = 5.0  # without a byte; a line that loses packets may be slow, but answers
WHOLE_S = 120.0  # for one answer: 64 MiB of a slow line; what drips longer is given up
AGAIN_S = 2.0  # between two questions while a torrent is made
MAKING_S = 900.0  # the longest wait for that: a terabyte takes some minutes
_ANNOUNCE_BYTES = 4096


class Found(msgspec.Struct, frozen=True):
    """Where a model is seeded."""

    site: str  # as the operator named it
    peer: str  # IP:PORT


def command(name: str, digest: str, folder: Path, sites: tuple[str, ...]) -> list[str]:
    """The command of the process; see this module."""
    program = [sys.executable, "-m", "p2pcache.io.torrents.finding"]
    return [*program, name, digest, str(folder), *sites]


def find(name: str, digest: str, folder: Path, sites: list[str]) -> Found:
    """Ask one site after the other.

    Args:
        name: NAMESPACE/NAME of the model.
        digest: of its manifest.
        folder: gets the files.
        sites: HOST:PORT of torrent doors.

    Raises:
        P2PCacheError: no site has it; the error is the last one that isn't NotFound, if there is one.
    """
    trouble: P2PCacheError = NotFound("no other site is named")
    deadline = time.monotonic() + MAKING_S
    for site in sites:
        try:
            return _awaited(site, name, digest, folder, deadline)
        except P2PCacheError as error:
            if not isinstance(error, NotFound) or isinstance(trouble, NotFound):
                trouble = error
    raise trouble


def _awaited(site: str, name: str, digest: str, folder: Path, deadline: float) -> Found:
    while True:
        try:
            return _ask(site, name, digest, folder)
        except Busy:
            if time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)


def _ask(site: str, name: str, digest: str, folder: Path) -> Found:
    path = f"/{quote(name)}/@{digest}.torrent"
    data, host = _get(site, path, MAX_TORRENT_BYTES)
    torrent = read_metainfo(data)
    if torrent.digest != digest or not torrent.manifest:
        raise InvalidTorrent(f"{site} answered with the torrent of another model")
    info_hash = "".join(f"%{byte:02x}" for byte in bytes.fromhex(torrent.info_hash[:40]))
    said, _ = _get(site, f"/announce?info_hash={info_hash}", _ANNOUNCE_BYTES)
    peer = join(host, _port(site, said))
    write_whole(folder / MANIFEST, torrent.manifest)
    write_whole(folder / TORRENT, data)
    return Found(site, peer)


def _get(site: str, path: str, most: int) -> tuple[bytes, str]:
    """The body of an answer, and the IP address that sent it. Redirects are refused."""
    began = time.monotonic()
    try:
        host, port = split(site)
        with closing(http.client.HTTPConnection(host, port, timeout=ANSWER_S)) as connection:
            connection.connect()
            address = str(connection.sock.getpeername()[0])
            connection.request("GET", path, headers={"Connection": "close"})
            with in_time(connection.sock, WHOLE_S):
                answer = connection.getresponse()
            with answer:
                data = bytearray()
                while part := answer.read1(1 << 16):
                    data += part
                    if len(data) > most or time.monotonic() - began > WHOLE_S:
                        raise InvalidTorrent(f"{site} answers with too much, or too slowly")
                left = answer.length
    except (OSError, http.client.HTTPException, RemoteProtocolError) as error:
        raise Unreachable(f"site {site} doesn't answer: {error}") from None
    if answer.status == http.client.SERVICE_UNAVAILABLE:
        raise Busy(f"site {site} makes the torrent", retry_after_s=AGAIN_S)
    if answer.status != http.client.OK:
        kind = NotFound if answer.status == http.client.NOT_FOUND else Unreachable
        raise kind(f"site {site} answers {answer.status} for {path[:200]}")
    if left:
        raise Unreachable(f"site {site} broke its answer off")
    return bytes(data), address


def _port(site: str, said: bytes) -> int:
    """The port of the one peer that an agent's announce names.

    Raises:
        Busy: it names none yet.
        InvalidTorrent: it makes no sense.
    """
    try:
        answer: Any = libtorrent().bdecode(said)
        if b"failure reason" in answer:
            raise Busy(f"site {site} seeds the model soon", retry_after_s=AGAIN_S)
        packed: bytes = answer.get(b"peers") or answer[b"peers6"]
        port = int.from_bytes(packed[-2:], "big") if len(packed) in (6, 18) else 0
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError):
        port = 0
    if not port:
        raise InvalidTorrent(f"the announce of {site} makes no sense")
    return port


def main(argv: list[str]) -> int:
    """Find one model; the exit code is that of the error."""
    name, digest, folder, *sites = argv
    limit_process()
    try:
        found = find(name, digest, Path(folder), sites)
    except (P2PCacheError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code if isinstance(error, P2PCacheError) else 1
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

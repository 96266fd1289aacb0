"""Torrents of models: hybrids of v1 and v2 (BEP 52), the same bytes on every node.

    python -m p2pcache.io.torrents.making FOLDER MANIFEST FILE [v1]

A process of its own: it reads the whole model for SHA-1 and SHA-256, and whoever waits can end it. It prints lines of
bytes done and bytes in all.

Clients that can't read hybrids (Transmission until 3, aria2 until 1.36) need one of version 1 alone, which is another
torrent, with another info hash.
"""

import contextlib
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2pcache.core.format.manifest import Manifest, decode, digest_of
from p2pcache.io.torrents.library import libtorrent
from p2pcache.io.torrents.metainfo import OUR_KEY

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
MAX_PIECE_BYTES = 16 * MiB  # clients hold several in memory
TELL_S = 0.5  # between two lines
_NICE = 10  # nobody waits for a hash pass as for a pull


def piece_bytes(size_bytes: int) -> int:
    """The size of a torrent's pieces, from that of its model: the same on every node, and for good.

    Large ones make short torrent files and few messages. Each file begins with a piece of its own, so small models
    need small ones.
    """
    for below, piece in ((64 * MiB, 256 * KiB), (GiB, MiB), (64 * GiB, 8 * MiB)):
        if size_bytes < below:
            return piece
    return MAX_PIECE_BYTES


def make_torrent(
    parent: Path,
    manifest: bytes,
    tell: Callable[[int, int], None] | None = None,
    *,
    v1: bool = False,
) -> bytes:
    """The torrent of a published model, without trackers and web seeds: all nodes make the same bytes.

    The torrent is named `@HEX`, as the model's folder: so its info hash follows from the files alone, a web seed at
    `/NAMESPACE/NAME/` is a folder of models, and even a magnet link names the model.

    Args:
        parent: has the model's folder `@HEX`.
        manifest: canonical bytes.
        tell: called with (bytes done, bytes in all).
        v1: of version 1 alone, for old clients.
    """
    lt = libtorrent()
    digest, decoded = digest_of(manifest), decode(manifest)
    total, piece = decoded.size_bytes, piece_bytes(decoded.size_bytes)
    flags = int(lt.create_torrent.v1_only) if v1 else 0
    creator = lt.create_torrent(_entries(decoded, f"@{digest}"), piece, flags)

    def count(number: int) -> None:
        if tell is not None:
            tell(min(total, (number + 1) * piece), total)

    lt.set_piece_hashes(creator, str(parent), count)
    torrent = creator.generate()
    for key in (b"creation date", b"created by"):
        torrent.pop(key, None)
    torrent[b"comment"] = f"p2pcache blake3:{digest}".encode()
    torrent[OUR_KEY] = zlib.compress(manifest, 9)
    return bytes(lt.bencode(torrent))


def _entries(manifest: Manifest, folder: str) -> list[Any]:
    lt = libtorrent()
    return [lt.create_file_entry(f"{folder}/{f.path}", f.size) for f in manifest.files]


def maker_command(parent: Path, manifest: Path, target: Path, *, v1: bool) -> list[str]:
    """The command of the process that makes a torrent; see this module."""
    program = [sys.executable, "-m", "p2pcache.io.torrents.making"]
    return [*program, str(parent), str(manifest), str(target), *(["v1"] if v1 else [])]


def web_seed_url(base: str, namespace: str, name: str) -> str:
    """Where clients look for the folder `@HEX` of a model, on a server that shows models by their refs."""
    return f"{base.rstrip('/')}/{namespace}/{name}/"


def with_sources(torrent: bytes, tracker: str, web_seed: str) -> bytes:
    """The torrent with places to get it from; "": no such place. Its info hash stays the same."""
    first, last = sources_around(tracker, web_seed)
    return first + torrent[1:-1] + last


def sources_around(tracker: str, web_seed: str) -> tuple[bytes, bytes]:
    """What takes the place of a torrent's first and last byte, to name places to get it from; "": no such place.

    Keys of a torrent are sorted, and `make_torrent` writes none before `announce` or behind `url-list`.
    """
    first = _string("announce") + _string(tracker) if tracker else b""
    last = _string("url-list") + _string(web_seed) if web_seed else b""
    return b"d" + first, last + b"e"


def _string(text: str) -> bytes:
    data = text.encode()
    return b"%d:%s" % (len(data), data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Make one torrent; the exit code is 0, or 1 with a line on stderr."""
    folder, manifest, target, *rest = argv
    with contextlib.suppress(OSError):  # a service manager may forbid it
        os.nice(_NICE)

    told = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_S or done == total:
            told = time.monotonic()
            sys.stdout.write(f"{done} {total}\n")
            sys.stdout.flush()

    try:
        torrent = make_torrent(Path(folder), Path(manifest).read_bytes(), tell, v1=rest == ["v1"])
        write_whole(Path(target), torrent)
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

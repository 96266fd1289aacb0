"""Torrents for tests: of models as we make them, and as strangers could."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from p2pcache.core.format.manifest import digest_of, encode
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.torrents.making import make_torrent

PIECE = 1 << 14
lt: Any = pytest.importorskip("libtorrent")
FILES = {
    "config.json": b"{}", "model.bin": bytes(range(256)) * 3000, "sub/vocab.txt": b"one\n", "empty": b"",
}  # fmt: skip


def published(parent: Path, files: dict[str, bytes] = FILES) -> tuple[str, bytes]:
    """A model as a cache shows it below `parent`; its digest and manifest."""
    draft = parent / "draft"
    for path, data in files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).write_bytes(data)
    manifest = encode(index_directory(draft)[0])
    digest = digest_of(manifest)
    draft.rename(parent / f"@{digest}")
    return digest, manifest


def ours(parent: Path, files: dict[str, bytes] = FILES) -> bytes:
    """The torrent of a model that is published below `parent`."""
    _, manifest = published(parent, files)
    return make_torrent(parent, manifest)


def v1_info(files: list[dict[bytes, Any]], name: bytes = b"model", **more: Any) -> dict[bytes, Any]:
    """An info dictionary of version 1 for files with their own idea of everything."""
    total = sum(file[b"length"] for file in files if isinstance(file[b"length"], int))
    pieces = min(10, max(1, -(-max(0, total) // PIECE)))
    info = {b"name": name, b"piece length": PIECE, b"files": files, b"pieces": bytes(20) * pieces}
    return info | {key.encode(): value for key, value in more.items()}


def torrent(info: dict[bytes, Any], **more: Any) -> bytes:
    """A torrent file around an info dictionary."""
    top: Any = {b"info": info, **{key.encode(): value for key, value in more.items()}}
    return bytes(lt.bencode(top))


def of_bytes(name: str, data: bytes, **more: Any) -> bytes:
    """A good torrent of version 1 of one file."""
    pieces = b"".join(
        hashlib.sha1(data[at : at + PIECE]).digest() for at in range(0, len(data), PIECE)
    )
    info = {b"name": name.encode(), b"piece length": PIECE, b"length": len(data), b"pieces": pieces}
    return torrent(info, **more)

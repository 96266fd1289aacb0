"""Torrent files: what one says, and whether it may be believed. A torrent is a stranger's input.

Names follow the rules of manifests; links are refused; what libtorrent would write is compared with what was checked.
"""

import zlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from p2pcache.core.format.manifest import (
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    File,
    Manifest,
    check_path,
    decode,
    make_manifest,
)
from p2pcache.errors import InvalidManifest, InvalidTorrent
from p2pcache.ids import is_digest
from p2pcache.io.torrents.library import libtorrent

MAX_TORRENT_BYTES = 64 << 20  # a million pieces are 52 MB; a model of 10 TB has fewer
MAX_PIECES = 1 << 20
MAX_TOTAL_BYTES = 64 << 40  # a million chunks of 64 MiB, as in a manifest
MAX_SOURCES = 32  # trackers and web seeds that are used, of each kind
OUR_KEY = b"p2pcache"  # beside `info`: the packed manifest of a model that we exported
LIMITS = {"max_buffer_size": MAX_TORRENT_BYTES, "max_pieces": MAX_PIECES}


class TorrentFile(NamedTuple):
    """A file of a torrent."""

    path: str  # in the model: without the torrent's own folder
    size: int


class Metainfo(NamedTuple):
    """A torrent file that was checked."""

    name: str  # of its folder, or of its only file
    folder: bool
    info_hash: str  # hex: of v2 if it has one, else of v1
    files: tuple[TorrentFile, ...]  # in order of their paths, without padding
    trackers: tuple[str, ...]
    web_seeds: tuple[str, ...]
    manifest: bytes  # of a model that we exported, else b""; it fits the digest that `name` has
    data: bytes  # the torrent file

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """The model's digest, if this is the torrent of a model that we exported; else ""."""
        return digest_named(self.name)


def digest_named(name: str) -> str:
    """The digest in the name of a torrent that we exported, `@HEX`; "" in any other."""
    return name[1:] if name.startswith("@") and is_digest(name[1:]) else ""


def read_metainfo(data: bytes) -> Metainfo:
    """Check a torrent file.

    Raises:
        InvalidTorrent: it isn't one, or breaks a rule.
        UsageError: libtorrent isn't installed.
    """
    lt = libtorrent()
    if len(data) > MAX_TORRENT_BYTES:
        raise InvalidTorrent(f"a torrent file of {len(data):,} bytes is over the limit of 64 MiB")
    if not data.startswith(b"d"):
        raise InvalidTorrent("it is no torrent file")
    try:
        params = lt.load_torrent_buffer(data, LIMITS)
        top = lt.bdecode(data)
        layout = params.ti.layout()
    except (RuntimeError, ValueError, RecursionError) as error:
        raise InvalidTorrent(f"this is no good torrent file: {error}") from None
    info = _dict(top.get(b"info"))
    name = _text(info.get(b"name.utf-8", info.get(b"name")))
    _check(name)
    folder, files = _files(info, name)
    _compare(layout, name if folder else "", files)
    hashes = params.ti.info_hashes()
    info_hash = str(hashes.v2) if hashes.has_v2() else str(hashes.v1)
    return Metainfo(
        name, folder, info_hash, files, tuple(params.trackers[:MAX_SOURCES]),
        tuple(params.url_seeds[:MAX_SOURCES]), _manifest(top, name, files), data,
    )  # fmt: skip


def _files(info: Mapping[bytes, Any], name: str) -> tuple[bool, tuple[TorrentFile, ...]]:
    """Whether there is a folder, and the files."""
    folder, found = True, list[TorrentFile]()
    if b"file tree" in info:
        found = list(_tree_files(_dict(info[b"file tree"]), ""))
        folder = not (len(found) == 1 and found[0].path == name)
    elif b"files" in info:
        found = list(_listed_files(info[b"files"]))
    else:
        folder, found = False, [TorrentFile(name, _size(info.get(b"length")))]
    if (
        b"file tree" in info
        and b"files" in info
        and sorted(_listed_files(info[b"files"])) != sorted(found)
    ):
        raise InvalidTorrent("the torrent's two versions have different files")
    if not found:
        raise InvalidTorrent("the torrent has no files")
    if len(found) > MAX_FILES:
        raise InvalidTorrent(f"the torrent has more than {MAX_FILES:,} files")
    if sum(file.size for file in found) > MAX_TOTAL_BYTES:
        raise InvalidTorrent("the torrent says that its files have over 64 TiB")
    _check_tree(found)
    return folder, tuple(sorted(found, key=lambda file: file.path.encode()))


def _tree_files(tree: Mapping[bytes, Any], above: str) -> Iterator[TorrentFile]:
    for key, below in tree.items():
        part = _part(key)
        node = _dict(below)
        if b"" in node:
            file = _dict(node[b""])
            _refuse_link(file, above + part)
            yield TorrentFile(above + part, _size(file.get(b"length")))
        else:
            yield from _tree_files(node, f"{above}{part}/")


def _listed_files(files: object) -> Iterator[TorrentFile]:
    if not isinstance(files, list):
        raise InvalidTorrent("the torrent's list of files is none")
    for entry in files:
        file = _dict(entry)
        parts = file.get(b"path.utf-8", file.get(b"path"))
        if not isinstance(parts, list):
            raise InvalidTorrent("a file of the torrent has no path")
        path = "/".join(_part(part) for part in parts)
        _refuse_link(file, path)
        if b"p" not in _attributes(file):
            yield TorrentFile(path, _size(file.get(b"length")))


def _refuse_link(file: Mapping[bytes, Any], path: str) -> None:
    if b"l" in _attributes(file) or b"symlink path" in file:
        raise InvalidTorrent(f"{path[:200]!a} in the torrent is a link; a model has only files")


def _attributes(file: Mapping[bytes, Any]) -> bytes:
    found = file.get(b"attr", b"")
    return found if isinstance(found, bytes) else b""


def _compare(layout: Any, folder: str, files: tuple[TorrentFile, ...]) -> None:
    """Refuse a torrent of which libtorrent would write other files than those that were checked."""
    lt = libtorrent()
    start = f"{folder}/" if folder else ""
    wanted = {start + file.path: file.size for file in files}
    for number in range(layout.num_files()):
        flags = int(layout.file_flags(number))
        if flags & int(lt.file_flags_t.flag_symlink):
            raise InvalidTorrent("the torrent has a link; a model has only files")
        if flags & int(lt.file_flags_t.flag_pad_file):
            continue
        path = layout.file_path(number)
        if wanted.pop(path, None) != layout.file_size(number):
            raise InvalidTorrent(f"the torrent contradicts itself about the file {path[:200]!a}")
    if wanted:
        raise InvalidTorrent("the torrent contradicts itself about its files")


def _manifest(top: Mapping[bytes, Any], name: str, files: tuple[TorrentFile, ...]) -> bytes:
    """The manifest that the torrent brings, if it does; proved by the digest in its name."""
    packed, digest = top.get(OUR_KEY), digest_named(name)
    if not digest or not isinstance(packed, bytes):
        return b""
    opened = zlib.decompressobj()
    try:
        encoded = opened.decompress(packed, MAX_MANIFEST_BYTES)
    except zlib.error:
        raise InvalidTorrent("the manifest in the torrent is damaged; export it again") from None
    if not opened.eof:
        raise InvalidTorrent("the manifest in the torrent is cut off, or over 256 MiB")
    manifest: Manifest = decode(encoded, digest)
    if [(file.path, file.size) for file in manifest.files] != list(files):
        raise InvalidTorrent("the torrent's files aren't those of the manifest in it")
    return encoded


def _dict(value: object) -> Mapping[bytes, Any]:
    if not isinstance(value, dict):
        raise InvalidTorrent("a part of the torrent is missing")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_TOTAL_BYTES:
        raise InvalidTorrent("a file of the torrent has an impossible size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise InvalidTorrent("a name in the torrent is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidTorrent(f"the name {value[:80]!a} in the torrent is not UTF-8") from None


def _part(value: object) -> str:
    text = _text(value)
    if "/" in text:
        raise InvalidTorrent(f"the name {text[:80]!a} in the torrent has a slash")
    _check(text)
    return text


def _check_tree(files: list[TorrentFile]) -> None:
    """Refuse paths that can't stand beside each other in a model."""
    try:
        make_manifest(File(file.path, 0, array("I"), b"") for file in files)
    except InvalidManifest as error:
        raise InvalidTorrent(f"the torrent is refused: {error}") from None


def _check(path: str) -> None:
    try:
        check_path(path)
    except InvalidManifest as error:
        raise InvalidTorrent(f"the torrent is refused: {error}") from None

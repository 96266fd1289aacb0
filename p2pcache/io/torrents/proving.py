"""Bytes that came by a torrent become a model: each chunk is proved by BLAKE3 before anything is made of it."""

import os
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import decode
from p2pcache.errors import IntegrityError
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.disk.region_hash import hash_region
from p2pcache.io.files.indexing import Progress
from p2pcache.io.files.push_upload import Indexed, indexed
from p2pcache.io.torrents.metainfo import Metainfo

Tell = Callable[[Progress], None]


def proved(torrent: Metainfo, root: Path, tell: Tell) -> Indexed:
    """The model in a folder.

    The torrent of a model that we exported is that model, or nothing. Any other torrent's files are whatever they are:
    they get a manifest now.

    Args:
        torrent: which brought them.
        root: has the files.
        tell: called with the progress.

    Raises:
        IntegrityError: they aren't the model that the torrent names.
        UsageError: they can't be a model.
    """
    if torrent.manifest:
        return _prove(torrent.manifest, root, tell)
    found = indexed(root, tell)
    if not torrent.digest or found.layout.digest == torrent.digest:
        return found
    with_sha256 = indexed(root, tell, sha256=True)  # a magnet link brings no manifest
    if with_sha256.layout.digest == torrent.digest:
        return with_sha256
    raise IntegrityError(
        f"the torrent is named as model blake3:{torrent.digest[:12]}, but its files make "
        f"blake3:{found.layout.digest[:12]}; with a magnet link, import the .torrent file, which has the manifest"
    )


def _prove(encoded: bytes, root: Path, tell: Tell) -> Indexed:
    manifest = decode(encoded)
    sources = {file.path: root / file.path for file in manifest.files}
    done, total = 0, manifest.size_bytes
    for file in manifest.files:
        with disk_errors(file.path):
            descriptor = os.open(sources[file.path], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                offset = 0
                for length, digest in file.chunks:
                    if hash_region(descriptor, offset, length, blake3()).digest() != digest:
                        raise IntegrityError(
                            f"{file.path}: its bytes from {offset:,} on aren't the model's; the torrent was made of "
                            "other files than it says"
                        )
                    offset += length
                    done += length
                    tell(Progress(done, total, len(manifest.files)))
            finally:
                os.close(descriptor)
    return Indexed(Layout(manifest), encoded, sources)

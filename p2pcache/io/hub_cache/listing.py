"""What the hub's clients are told of files: ids, and the listing of a commit that they keep in their cache."""

from collections.abc import Iterable

import msgspec

from p2pcache.core.format.manifest import File
from p2pcache.io.hub_cache.layout import COMMIT_DIGITS

_VERSION = 1  # of the listing; clients pass over others


def etag_of(file: File) -> str:
    """What names a file's bytes: 64 hex digits. Clients use it as a file's name."""
    return file.sha256.hex() or file.blob_id


def blob_id_of(file: File) -> str:
    """The same, in the 40 digits of git."""
    return etag_of(file)[:COMMIT_DIGITS]


def encode_listing(files: Iterable[File]) -> bytes:
    """The listing of a commit, as `huggingface_hub` writes it after it has asked for a tree."""
    return msgspec.json.encode(
        {"format_version": _VERSION, "files": {file.path: _entry(file) for file in files}}
    )


def _entry(file: File) -> dict[str, object]:
    entry: dict[str, object] = {"size": file.size, "blob_id": blob_id_of(file)}
    if file.sha256:
        entry |= {"lfs_sha256": file.sha256.hex(), "lfs_size": file.size}
    return entry

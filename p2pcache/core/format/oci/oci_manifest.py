"""Manifests of registries, read: which files of a model its layers are. They are untrusted input.

ModelPack and plain artifacts (ORAS) are understood: each layer is one file as it is, and an annotation names it.
"""

import re
from typing import NamedTuple

import msgspec

from p2pcache.core.format.manifest import MAX_FILES, SHA256_BYTES, check_path
from p2pcache.core.format.oci.model_pack import FILE_PATH, MAX_MANIFEST_BYTES, MEDIA_MANIFEST, TITLE
from p2pcache.errors import InvalidManifest, UsageError

MEDIA_INDEX = "application/vnd.oci.image.index.v1+json"
MEDIA_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MEDIA_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPT = ", ".join((MEDIA_MANIFEST, MEDIA_INDEX, MEDIA_DOCKER_MANIFEST, MEDIA_DOCKER_INDEX))
_PATHS = (FILE_PATH, "org.cnai.model.filepath", TITLE)  # the second: before the CNCF took it over
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PACKED = re.compile(r"[.+](tar|gzip|zstd|tgz)\b|\.rootfs\.")
_INDEXES = (MEDIA_INDEX, MEDIA_DOCKER_INDEX)


class Layer(NamedTuple):
    """One file of an artifact."""

    path: str
    size: int  # bytes
    sha256: bytes  # of the file: 32 bytes

    @property
    def digest(self) -> str:
        """As registries write it."""
        return f"sha256:{self.sha256.hex()}"


class _Descriptor(msgspec.Struct, rename="camel"):
    """What a manifest says of a layer. URLs of other places are never followed, so they aren't read."""

    digest: str
    size: int
    media_type: str = ""
    annotations: dict[str, str] | None = None


class _Manifest(msgspec.Struct, rename="camel"):
    schema_version: int = 0
    media_type: str = ""
    layers: list[_Descriptor] | None = None
    manifests: list[_Descriptor] | None = None


def is_oci_digest(text: str) -> bool:
    """Whether a text is a digest that is understood here: `sha256:HEX`."""
    return _DIGEST.fullmatch(text) is not None


def only_manifest(data: bytes, where: str) -> str:
    """The digest of the one manifest of an index; "": this is no index, but a manifest.

    Args:
        data: an index or a manifest.
        where: it is from, for messages.

    Raises:
        UsageError: neither, or an index of several.
    """
    found = _parse(data, where)
    if found.manifests is None and found.media_type not in _INDEXES:
        return ""
    digests = {one.digest for one in found.manifests or ()}
    if len(digests) != 1:
        raise UsageError(
            f"{where} is an index of {len(digests)} manifests; name the one that is meant: @sha256:HEX"
        )
    (digest,) = digests
    if not is_oci_digest(digest):
        raise UsageError(f"{where}: not a digest: {digest[:100]!a}")
    return digest


def layers_of(data: bytes, where: str) -> list[Layer]:
    """The files of an artifact.

    Args:
        data: its manifest.
        where: it is from, for messages.

    Raises:
        UsageError: not an artifact whose layers are files.
    """
    found = _parse(data, where).layers or []
    if not found:
        raise UsageError(f"{where} has no layers, so it is no model")
    if len(found) > MAX_FILES:
        raise UsageError(f"{where} has more than {MAX_FILES:,} layers")
    layers = [_layer(one, where) for one in found]
    names = {layer.path for layer in layers}
    if len(names) != len(layers):
        raise UsageError(f"{where}: two layers are the same file")
    return layers


def _layer(one: _Descriptor, where: str) -> Layer:
    if _PACKED.search(one.media_type):
        raise UsageError(
            f"{where}: a layer is packed ({one.media_type[:100]!a}), and files are read in place; pack the model "
            "raw (`modctl build --raw`, `oras push`), or unpack it and `p2pcache push` the directory"
        )
    notes = one.annotations or {}
    path = next((notes[name] for name in _PATHS if name in notes), "")
    if not path:
        raise UsageError(
            f"{where}: layer {one.digest[:80]!a} has no annotation that names its file"
        )
    try:
        check_path(path)
    except InvalidManifest as error:
        raise UsageError(f"{where}: {error}") from None
    if not is_oci_digest(one.digest) or one.size < 0:
        raise UsageError(f"{where}: the layer of {path} has no size or SHA-256 that can be right")
    return Layer(path, one.size, bytes.fromhex(one.digest[-2 * SHA256_BYTES :]))


def _parse(data: bytes, where: str) -> _Manifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError(f"{where}: a manifest of more than 4 MiB is over the limit")
    try:
        found = msgspec.json.decode(data, type=_Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not a manifest of a registry: {error}") from None
    if found.schema_version != 2:
        raise UsageError(f"{where}: a manifest of another version than 2 isn't understood")
    return found

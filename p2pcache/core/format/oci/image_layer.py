"""A model as a runnable image of an OCI registry: its files in uncompressed tar archives, below `models/`.

Runtimes that mount images but no artifacts take it. That folder is where KServe looks for a model in an image. The
same files give the same image on each node.
"""

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from p2pcache.core.format.manifest import File
from p2pcache.core.format.oci.model_pack import MEDIA_MANIFEST, digest_of
from p2pcache.errors import UsageError

MEDIA_INDEX = "application/vnd.oci.image.index.v1+json"
MEDIA_IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
MEDIA_TAR = "application/vnd.oci.image.layer.v1.tar"
FOLDER = "models/"
MAX_LAYERS = 64  # runtimes mount each of them; overlayfs takes some 120
LAYER_BYTES = 1 << 30  # at least, where there is so much: runtimes fetch three layers at once
_WHITEOUT = ".wh."  # begins the name of a file that a layer removes
_BLOCK = 512  # of a tar archive
_ARCHITECTURES = ("amd64", "arm64")  # of nodes; the files are the same


class Layer(NamedTuple):
    """One archive."""

    digest: str
    size: int  # bytes
    paths: tuple[str, ...]  # of its files, in order


class Image(NamedTuple):
    """A model as a runtime sees it."""

    digest: str  # of the index
    blobs: dict[
        str, tuple[bytes, str]
    ]  # index, manifests and configurations with their media types, by digest
    layers: dict[str, Layer]  # by digest


def layers_of(files: Sequence[File]) -> Iterator[list[File]]:
    """The files of each layer: consecutive ones."""
    least = max(LAYER_BYTES, sum(file.size for file in files) // MAX_LAYERS + 1)
    layer: list[File] = []
    size = 0
    for file in files:
        layer.append(file)
        size += file.size
        if size >= least:
            yield layer
            layer, size = [], 0
    if layer:
        yield layer


def archive_of(files: Iterable[File]) -> Iterator[File | bytes]:
    """What an archive consists of: headers and padding as bytes, and files.

    Raises:
        UsageError: a file that no image can hold.
    """
    padding = b""
    for file in files:
        if f"/{_WHITEOUT}" in f"/{file.path}":
            raise UsageError(f"no image can hold {file.path!r}: runtimes remove what is named so")
        entry = tarfile.TarInfo(FOLDER + file.path)
        entry.size, entry.mode = file.size, 0o444
        yield padding + entry.tobuf(tarfile.PAX_FORMAT)
        yield file
        padding = bytes(-file.size % _BLOCK)
    yield padding + bytes(2 * _BLOCK)


def make_image(layers: Sequence[Layer]) -> Image:
    """The image of these layers, for each architecture."""
    blobs: dict[str, tuple[bytes, str]] = {}

    def put(value: object, media: str) -> dict[str, object]:
        data = msgspec.json.encode(value)
        blobs[digest_of(data)] = data, media
        return {"mediaType": media, "digest": digest_of(data), "size": len(data)}

    manifests = []
    for architecture in _ARCHITECTURES:
        platform = {"architecture": architecture, "os": "linux"}
        digests = [layer.digest for layer in layers]
        config = put(
            {**platform, "config": {}, "rootfs": {"type": "layers", "diff_ids": digests}},
            MEDIA_IMAGE_CONFIG,
        )
        listed = [
            {"mediaType": MEDIA_TAR, "digest": layer.digest, "size": layer.size} for layer in layers
        ]
        manifest = put(
            {"schemaVersion": 2, "mediaType": MEDIA_MANIFEST, "config": config, "layers": listed},
            MEDIA_MANIFEST,
        )
        manifests.append({**manifest, "platform": platform})
    index = put({"schemaVersion": 2, "mediaType": MEDIA_INDEX, "manifests": manifests}, MEDIA_INDEX)
    return Image(str(index["digest"]), blobs, {layer.digest: layer for layer in layers})

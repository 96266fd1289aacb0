"""A model as an artifact of an OCI registry: the CNCF ModelPack specification, one raw layer a file.

A layer's digest is the SHA-256 of its file, so registries and caches share bytes with everybody who packs the
same file. The same files give the same artifact on each node: no name, place or time is in it.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

import msgspec

from p2pcache.core.format.manifest import File
from p2pcache.errors import NotFound, UsageError

MEDIA_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_CONFIG = "application/vnd.cncf.model.config.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"  # by which ORAS, podman and CRI-O name a file
MAX_MANIFEST_BYTES = 4 << 20  # registries and clients refuse more
_LAYER = "application/vnd.cncf.model.{}.v1.raw"
_DOC = ("readme", "license", "licence", "notice", "changelog", "citation")
_KINDS = {
    "md": "doc", "pdf": "doc", "rst": "doc", "png": "doc", "jpg": "doc", "jpeg": "doc", "svg": "doc",
    "py": "code", "sh": "code", "ipynb": "code", "cu": "code", "cpp": "code", "c": "code", "h": "code",
    "json": "weight.config", "jsonl": "weight.config", "yaml": "weight.config", "yml": "weight.config",
    "toml": "weight.config", "txt": "weight.config", "jinja": "weight.config", "tiktoken": "weight.config",
    "csv": "dataset", "parquet": "dataset", "arrow": "dataset",
}  # fmt: skip
_FORMATS = {
    "safetensors": "safetensors", "gguf": "gguf", "onnx": "onnx", "bin": "pytorch", "pt": "pytorch",
    "pth": "pytorch", "h5": "keras", "keras": "keras", "pb": "tensorflow", "tflite": "tflite",
}  # fmt: skip


class Artifact(NamedTuple):
    """A model as a registry shows it."""

    digest: str  # of the manifest, `sha256:HEX`
    manifest: bytes
    config_digest: str
    config: bytes
    paths: dict[str, str]  # of a file with these bytes, by its layer's digest


def make_artifact(files: Iterable[File]) -> Artifact:
    """The artifact of a model.

    Raises:
        NotFound: the SHA-256 of some file isn't known.
        UsageError: it has more files than a registry's manifest can list.
    """
    listed = list(files)
    paths: dict[str, str] = {}
    for file in listed:
        if not file.sha256:
            raise NotFound(
                "the model was pushed without the SHA-256 of its files, by which registries name them; "
                "push it again with `p2pcache push --sha256`"
            )
        paths.setdefault(layer_digest(file), file.path)
    config = msgspec.json.encode({
        "descriptor": {}, "config": {"format": known} if (known := _format_of(listed)) else {},
        "modelfs": {"type": "layers", "diffIds": [layer_digest(file) for file in listed]},
    })  # fmt: skip
    manifest = msgspec.json.encode({
        "schemaVersion": 2, "mediaType": MEDIA_MANIFEST, "artifactType": ARTIFACT_TYPE,
        "config": {"mediaType": MEDIA_CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [_layer(file) for file in listed],
    })  # fmt: skip
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise UsageError(
            f"{len(listed):,} files need a manifest of {len(manifest):,} bytes, and registries take 4 MiB at most"
        )
    return Artifact(digest_of(manifest), manifest, digest_of(config), config, paths)


def digest_of(data: bytes) -> str:
    """The digest of bytes as registries write it: `sha256:HEX`."""
    return f"sha256:{sha256(data).hexdigest()}"


def layer_digest(file: File) -> str:
    """The digest of a file's layer."""
    return f"sha256:{file.sha256.hex()}"


def _layer(file: File) -> dict[str, object]:
    return {
        "mediaType": _LAYER.format(_kind(file.path)), "digest": layer_digest(file), "size": file.size,
        "annotations": {FILE_PATH: file.path, TITLE: file.path},
    }  # fmt: skip


def _kind(path: str) -> str:
    """What a file is for, in the words of the specification. Unknown files are weights, as most large ones are."""
    name = path.rpartition("/")[2].lower()
    if name.partition(".")[0] in _DOC:
        return "doc"
    if name == "tokenizer.model":
        return "weight.config"
    return _KINDS.get(_ending(path), "weight")


def _format_of(files: Iterable[File]) -> str:
    """The format of the weights; "": unknown."""
    endings = {_ending(file.path) for file in files}
    return next((name for ending, name in _FORMATS.items() if ending in endings), "")


def _ending(path: str) -> str:
    return path.rpartition("/")[2].lower().rpartition(".")[2]

"""A model as an artifact of a registry."""

import hashlib
import json

import pytest

from p2pcache.core.format.manifest import Chunk, File, make_file
from p2pcache.core.format.oci import model_pack
from p2pcache.core.format.oci.model_pack import make_artifact
from p2pcache.errors import NotFound, UsageError

FILES = {
    "README.md": b"read", "config.json": b"{}", "modeling_x.py": b"1", "sub/model.safetensors": b"weights",
    "tokenizer.model": b"t", "train.parquet": b"p", "LICENSE": b"mine", "odd": b"odd", "empty": b"",
}  # fmt: skip


def file_of(path: str, data: bytes) -> File:
    chunks = [Chunk(len(data), bytes(32))] if data else []
    return make_file(path, chunks, hashlib.sha256(data).digest())


def test_each_file_is_a_raw_layer_named_by_its_sha256() -> None:
    artifact = make_artifact(file_of(path, data) for path, data in FILES.items())
    assert artifact.digest == "sha256:" + hashlib.sha256(artifact.manifest).hexdigest()
    assert artifact.config_digest == "sha256:" + hashlib.sha256(artifact.config).hexdigest()
    manifest = json.loads(artifact.manifest)
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest["config"] == {
        "mediaType": "application/vnd.cncf.model.config.v1+json", "digest": artifact.config_digest,
        "size": len(artifact.config),
    }  # fmt: skip
    for layer, (path, data) in zip(manifest["layers"], FILES.items(), strict=True):
        assert layer["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
        assert layer["size"] == len(data)
        assert layer["annotations"]["org.cncf.model.filepath"] == path
        assert artifact.paths[layer["digest"]] == path
    kinds = {
        layer["annotations"]["org.cncf.model.filepath"]: layer["mediaType"].removeprefix("application/vnd.cncf.model.")
        for layer in manifest["layers"]
    }  # fmt: skip
    assert kinds == {
        "README.md": "doc.v1.raw", "config.json": "weight.config.v1.raw", "modeling_x.py": "code.v1.raw",
        "sub/model.safetensors": "weight.v1.raw", "tokenizer.model": "weight.config.v1.raw",
        "train.parquet": "dataset.v1.raw", "LICENSE": "doc.v1.raw", "odd": "weight.v1.raw", "empty": "weight.v1.raw",
    }  # fmt: skip
    config = json.loads(artifact.config)
    assert config["config"] == {"format": "safetensors"}
    assert config["modelfs"]["diffIds"] == [layer["digest"] for layer in manifest["layers"]]


def test_files_with_the_same_bytes_are_two_layers_of_one_blob() -> None:
    artifact = make_artifact([file_of("a", b"same"), file_of("b", b"same")])
    assert len(json.loads(artifact.manifest)["layers"]) == 2
    assert list(artifact.paths.values()) == ["a"]


def test_no_artifact_without_sha256() -> None:
    with pytest.raises(NotFound, match="--sha256"):
        make_artifact([file_of("a", b"a"), file_of("b", b"b")._replace(sha256=b"")])


def test_no_manifest_that_clients_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_pack, "MAX_MANIFEST_BYTES", 10_000)
    with pytest.raises(UsageError, match="100 files"):
        make_artifact(file_of(f"file-{number}", b"x") for number in range(100))

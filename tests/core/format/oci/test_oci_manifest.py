"""Manifests of registries: what is read of them, and what is refused."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format.manifest import Chunk, make_file
from p2pcache.core.format.oci.model_pack import make_artifact
from p2pcache.core.format.oci.oci_manifest import layers_of, only_manifest
from p2pcache.errors import UsageError

HEX = "ab" * 32
RAW = "application/vnd.cncf.model.weight.v1.raw"


def layer(path: str = "w", **more: Any) -> dict[str, Any]:
    notes = {"org.cncf.model.filepath": path}
    return {"mediaType": RAW, "digest": f"sha256:{HEX}", "size": 7, "annotations": notes, **more}


def manifest(*layers: Any, **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "config": {}, "layers": list(layers), **more}).encode()


def test_what_we_write_is_read() -> None:
    files = [
        make_file(path, [Chunk(3, bytes(32))], hashlib.sha256(path.encode()).digest())
        for path in ("config.json", "sub/w \u00fc.safetensors")
    ]
    layers = layers_of(make_artifact(files).manifest, "here")
    assert [(one.path, one.size, one.sha256) for one in layers] == [
        (file.path, file.size, file.sha256) for file in files
    ]
    assert only_manifest(make_artifact(files).manifest, "here") == ""


def test_plain_artifacts_name_files_by_their_title() -> None:
    (found,) = layers_of(
        manifest(layer(annotations={"org.opencontainers.image.title": "a/b.bin"}, mediaType="")),
        "here",
    )
    assert (found.path, found.digest) == ("a/b.bin", f"sha256:{HEX}")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "not a manifest"), (b"[]", "not a manifest"), (b'{"schemaVersion":1}', "version"),
        (b"[" * 100_000, "not a manifest"), (b'{"schemaVersion":2}', "no layers"),
        (manifest(), "no layers"), (manifest(layer("../x")), "normalised"), (manifest(layer("/x")), "absolute"),
        (manifest(layer("a/../../x")), "normalised"), (manifest(layer("a\\b")), "backslash"),
        (manifest(layer("a\x1b[2J")), "control"), (manifest(layer("x" * 300)), "too long"),
        (manifest(layer("")), "names its file"), (manifest(layer(annotations=None)), "names its file"),
        (manifest(layer("a"), layer("a")), "same file"), (manifest(layer(size=-1)), "SHA-256"),
        (manifest(layer(digest="md5:12")), "SHA-256"), (manifest(layer(digest=f"sha512:{HEX * 2}")), "SHA-256"),
        (manifest(layer(digest=f"sha256:{HEX.upper()}")), "SHA-256"), (manifest(layer(size="7")), "not a manifest"),
        (manifest(layer(mediaType="application/vnd.cncf.model.weight.v1.tar")), "packed"),
        (manifest(layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip")), "packed"),
        (manifest(layer(mediaType="application/vnd.docker.image.rootfs.diff.tar.gzip")), "packed"),
        (manifest(layer(), pad="x" * (5 << 20)), "4 MiB"),
    ],
)  # fmt: skip
def test_what_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        layers_of(bad, "here")


def index(*digests: str) -> bytes:
    found = [{"digest": digest, "size": 1, "mediaType": ""} for digest in digests]
    return json.dumps({"schemaVersion": 2, "manifests": found}).encode()


def test_an_index_of_one_manifest_means_that_manifest() -> None:
    assert only_manifest(index(f"sha256:{HEX}"), "here") == f"sha256:{HEX}"
    for several in (index(), index(f"sha256:{HEX}", "sha256:" + "cd" * 32)):
        with pytest.raises(UsageError, match="name the one"):
            only_manifest(several, "here")
    with pytest.raises(UsageError, match="not a digest"):
        only_manifest(index("../../etc"), "here")


@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda path: manifest(layer(path))))
def test_no_path_leaves_the_model(data: bytes) -> None:
    try:
        found = layers_of(data, "here")
    except UsageError:
        return
    for one in found:
        assert not one.path.startswith("/")
        assert ".." not in one.path.split("/")

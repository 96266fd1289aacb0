"""A model as an image: what a runtime unpacks."""

import io
import json
import tarfile

import pytest

from p2pcache.core.format.manifest import Chunk, File, make_file
from p2pcache.core.format.oci import image_layer
from p2pcache.core.format.oci.image_layer import Layer, archive_of, layers_of, make_image
from p2pcache.errors import UsageError


def file_of(path: str, size: int) -> File:
    return make_file(path, [Chunk(size, bytes(32))] if size else [])


def test_an_archive_holds_the_files_below_models() -> None:
    files = [
        file_of("a.json", 5), file_of("empty", 0), file_of("sub/\u00fc" + "x" * 150, 512), file_of("z", 513),
    ]  # fmt: skip
    data = b"".join(one if isinstance(one, bytes) else b"x" * one.size for one in archive_of(files))
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        entries = {entry.name: entry for entry in opened}
        assert {name: entry.size for name, entry in entries.items()} == {
            f"models/{file.path}": file.size for file in files
        }
        for entry in entries.values():
            body = opened.extractfile(entry)
            assert body is not None
            assert body.read() == b"x" * entry.size
            assert (entry.mode, entry.mtime, entry.uid, entry.isreg()) == (0o444, 0, 0, True)
    assert len(data) % 512 == 0
    assert b"".join(one for one in archive_of(files) if isinstance(one, bytes)) == b"".join(
        one for one in archive_of(files) if isinstance(one, bytes)
    )


def test_a_file_over_8_gib_has_its_size() -> None:
    head = next(iter(archive_of([file_of("big", 0)._replace(size=9 << 30)])))
    assert isinstance(head, bytes)
    size = b"size=%d\n" % (9 << 30)  # a field of PAX, as the old header has no room
    assert size in head


def test_a_whiteout_is_no_file() -> None:
    """Runtimes take such names as orders to remove a file."""
    for path in (".wh.config.json", "sub/.wh..wh..opq", ".wh.sub/x"):
        with pytest.raises(UsageError, match=r"\.wh\."):
            list(archive_of([file_of(path, 1)]))
    assert list(archive_of([file_of("x.wh.y", 1)]))


def test_layers_are_few_and_hold_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_layer, "LAYER_BYTES", 100)
    for sizes in ([10] * 5, [1000] * 500, [100, 1, 1, 99, 5000], [0]):
        files = [file_of(f"f{number:04}", size) for number, size in enumerate(sizes)]
        layers = list(layers_of(files))
        assert [file for layer in layers for file in layer] == files
        assert len(layers) <= image_layer.MAX_LAYERS + 1


def test_an_image_for_each_architecture() -> None:
    layers = [Layer(f"sha256:{number:064}", 1024, ("a",)) for number in range(2)]
    image = make_image(layers)
    index = json.loads(image.blobs[image.digest][0])
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]
    for one in index["manifests"]:
        manifest = json.loads(image.blobs[one["digest"]][0])
        assert [layer["digest"] for layer in manifest["layers"]] == [one.digest for one in layers]
        config = json.loads(image.blobs[manifest["config"]["digest"]][0])
        assert config["rootfs"]["diff_ids"] == [one.digest for one in layers]
    assert len(image.blobs) == 5

"""Artifacts in a directory as source: what skopeo wrote, and what somebody tampered with."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.io.sources import SourceReader, SourceSettings, open_reader
from tests.io.sources.registry_kit import pack

FILES = {"config.json": b"{}", "sub/w.safetensors": b"weights" * 100, "empty": b""}


def opened(folder: Path) -> SourceReader:
    return open_reader(SourceSettings(url=f"oci-layout://{folder}"))


def contents(reader: SourceReader, place: str) -> dict[str, bytes]:
    found = {}
    for file in reader.files(place):
        data = bytearray(file.size)
        if file.size:
            with reader.open(file, 0, file.size) as body:
                assert body.readinto(memoryview(data)) == file.size
        found[file.path] = bytes(data)
    return found


def test_a_directory_of_skopeo(tmp_path: Path) -> None:
    pack(tmp_path / "packed", FILES)
    assert contents(opened(tmp_path), "packed") == FILES
    assert contents(opened(tmp_path / "packed"), "") == FILES


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo (make tools)")
def test_a_layout_of_skopeo(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    for tag, files in (("v1", FILES), ("v2", {"other": b"o"})):
        pack(tmp_path / tag, files)
        subprocess.run(
            ["skopeo", "--insecure-policy", "copy", "-q", f"dir:{tmp_path / tag}", f"oci:{tmp_path}/lake/m:{tag}"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    reader = opened(tmp_path / "lake")
    assert contents(reader, "m:v1") == FILES
    assert contents(reader, "m:v2") == {"other": b"o"}
    with pytest.raises(UsageError, match="2 artifacts"):
        list(reader.files("m"))
    with pytest.raises(NotFound):
        list(reader.files("m:v3"))
    index = json.loads((tmp_path / "lake/m/index.json").read_text())
    assert contents(reader, f"m@{index['manifests'][1]['digest']}") == {"other": b"o"}


def test_what_was_tampered_with_is_refused(tmp_path: Path) -> None:
    packed = pack(tmp_path / "packed", FILES)
    hexes = [
        layer["digest"][7:]
        for layer in json.loads((packed / "manifest.json").read_text())["layers"]
    ]
    (packed / hexes[0]).write_bytes(b"{} ")
    with pytest.raises(IntegrityError, match=r"config\.json"):
        list(opened(tmp_path).files("packed"))
    (packed / hexes[0]).unlink()
    with pytest.raises(NotFound):
        list(opened(tmp_path).files("packed"))
    (packed / hexes[0]).symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="leads out"):
        list(opened(tmp_path).files("packed"))
    (packed / "manifest.json").unlink()
    (packed / "manifest.json").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="leads out"):
        list(opened(tmp_path).files("packed"))
    layout = tmp_path / "layout"
    layout.mkdir()
    for digest in ("../../etc/passwd", "sha256:../x", f"sha512:{'0' * 128}"):
        (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": digest}]}))
        with pytest.raises(UsageError, match="not a digest"):
            list(opened(tmp_path).files("layout"))
    wrong = layout / "blobs/sha256" / ("0" * 64)
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(b"{}")
    (layout / "index.json").write_text(
        json.dumps({"manifests": [{"digest": f"sha256:{'0' * 64}"}]})
    )
    with pytest.raises(IntegrityError, match="other bytes"):
        list(opened(tmp_path).files("layout"))
    for place in ("../x", "/etc", "layout:v1/..", "a\nb"):
        with pytest.raises((UsageError, NotFound, IntegrityError)):
            list(opened(tmp_path).files(place))

"""Directories as sources: what is listed, what stays open, what is noticed."""

import os
from pathlib import Path

import pytest

import p2pcache
from p2pcache.errors import (
    IntegrityError,
)
from p2pcache.loader.source import directory
from tests.loader.loader_kit import Spec, torch_bytes, write

MiB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    return tmp_path, write(tmp_path / "m.safetensors", [Spec(f"t{i}", "U8", (MiB,)) for i in range(16)])  # fmt: skip


def test_pipes_devices_and_dangling_links_are_not_listed(
    model: tuple[Path, dict[str, bytes]],
) -> None:
    folder, body = model
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "zero.safetensors").symlink_to("/dev/zero")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    assert p2pcache.load(folder).keys() == body.keys()


def test_a_model_may_have_more_shards_than_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body: dict[str, bytes] = {}
    for i in range(12):
        body |= write(tmp_path / f"m-{i}.safetensors", [Spec(f"t{i}", "U8", (3000,))], seed=i)
    monkeypatch.setattr(directory, "OPEN_FILES", 3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with p2pcache.safe_open(tmp_path) as opened:
        for name in [*body, *body]:
            assert torch_bytes(opened.get_tensor(name)) == body[name]
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
        found = {name: torch_bytes(t) for name, t in p2pcache.iter_tensors(tmp_path)}
    assert found == body
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_shard_replaced_during_a_load_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header was another file's: its offsets mean nothing here."""
    for i in range(4):
        write(tmp_path / f"m-{i}.safetensors", [Spec(f"t{i}", "U8", (3000,))])
    monkeypatch.setattr(directory, "OPEN_FILES", 1)
    with p2pcache.safe_open(tmp_path) as opened:
        write(tmp_path / "new", [Spec("t0", "U8", (3000,))], seed=9)
        (tmp_path / "new").rename(tmp_path / "m-0.safetensors")
        with pytest.raises(IntegrityError, match="replaced"):
            opened.get_tensor("t0")

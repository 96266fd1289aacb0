"""A pushed model for commands without a daemon: a directory as storage, a cache of the user's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.standalone.model_kit import make_removable


@pytest.fixture
def model(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pushed model; the settings point at its storage."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(os.urandom(3_000_000))
    (folder / "sub" / "config.json").write_text("{}")
    (tmp_path / "origin").mkdir()
    monkeypatch.setenv("P2PCACHE_ORIGIN", f"file://{tmp_path}/origin")
    assert run("push", folder, "team/m:v1").exit_code == 0
    yield folder
    make_removable(tmp_path / "xdg")

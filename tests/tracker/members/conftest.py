"""A file with the key of `handshake_kit`."""

from pathlib import Path

import pytest

from tests.tracker.members.handshake_kit import KEY


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY.key)
    path.chmod(0o600)
    return str(path)

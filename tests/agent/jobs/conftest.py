"""Fixtures of the tests of jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.io.models.store_kit import small_file_system


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    with small_file_system(tmp_path / "small", 24_000_000) as place:
        yield place

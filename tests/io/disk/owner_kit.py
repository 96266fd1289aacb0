"""Caches that belong to another user."""

import os
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to others")


def give_away(cache: Path) -> None:
    """Let the directory and all in it belong to another user."""
    for path in (cache, *cache.rglob("*")):
        os.chown(path, 4321, 4321, follow_symlinks=False)

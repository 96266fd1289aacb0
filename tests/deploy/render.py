"""Manifests as `kubectl kustomize` and Helm render them."""

import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kubelet import REPO, objects_of

DEPLOY = REPO / "deploy"


def tool(name: str) -> str:
    """A program that a Python package carries; the test is skipped where it isn't installed."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed (make setup)")
    return str(path)


def kustomize(folder: str, tmp_path: Path) -> list[dict[str, Any]]:
    """The objects of a folder below deploy/kubernetes, with a key of their own."""
    copy = tmp_path / "kubernetes"
    if not copy.exists():
        shutil.copytree(DEPLOY / "kubernetes", copy, ignore=shutil.ignore_patterns("*.key"))
        for overlay in (copy / "overlays").iterdir():
            (overlay / "cluster.key").write_text(secrets.token_hex(32))
    command = [tool("kubectl"), "kustomize", str(copy / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return objects_of(done.stdout)


def example(name: str) -> list[dict[str, Any]]:
    """The objects of a file below deploy/kubernetes/examples."""
    return objects_of((DEPLOY / "kubernetes" / "examples" / name).read_text())

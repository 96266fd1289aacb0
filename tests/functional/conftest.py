"""Fixtures for tests with real processes: models, origins, clusters."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import Cluster
from loadtest.kit.models import make_model
from tests.functional.node import MakeCluster

MODEL_BYTES = 24 << 20  # 96 chunks: enough to share among three nodes, little enough to be quick


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.functional)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "one", MODEL_BYTES, shards=3, seed=1)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shares two of its three shards with nothing; a second version for tags to move to."""
    return make_model(tmp_path_factory.mktemp("models") / "two", 3 << 20, shards=3, seed=2)


@pytest.fixture
def origin_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    return folder


@pytest.fixture
def make_cluster(origin_dir: Path) -> Iterator[MakeCluster]:
    """Start clusters on a directory as origin; all are stopped after the test."""
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(f"file://{origin_dir}", **options))

        yield make

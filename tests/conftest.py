"""What holds for all tests."""

import pytest
from hypothesis import settings

# How long an example takes is the machine's business: 200 ms pass while another process runs.
settings.register_profile("p2pcache", deadline=None)
settings.load_profile("p2pcache")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: a worker that takes a long file last keeps the others waiting."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)

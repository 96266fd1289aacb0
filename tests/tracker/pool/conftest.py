"""A tracker that looks at what is kept more often."""

import pytest


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.tracker.app.KEEP_LOOK_S", 0.05)
    monkeypatch.setattr("p2pcache.tracker.pool.keeping.HEAR_S", 0.1)

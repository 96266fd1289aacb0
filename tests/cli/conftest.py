from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from p2pcache.cli.main import cli
from p2pcache.cli.support import connect
from tests.cli.fake_agent import FakeAgent, fake_agent

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, agent or cache of this machine reach a test."""
    import os

    for name in list(os.environ):
        if name.startswith("P2PCACHE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(connect, "DEFAULT_SOCKETS", (str(tmp_path / "none.sock"),))
    monkeypatch.setattr("p2pcache.io.config.SYSTEM_FILE", tmp_path / "none.toml")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    with fake_agent(tmp_path) as server:
        yield server


@pytest.fixture
def run() -> Run:
    def invoke(*args: object, **options: Any) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in args], **options)

    return invoke

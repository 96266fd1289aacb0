"""The settings of the agent that runs inside a command."""

from pathlib import Path

import pytest

from p2pcache.cli.standalone.embedded import agent_settings
from p2pcache.errors import UsageError
from tests.cli.loaded_settings import loaded

SOCKET = Path("/run/x.sock")


def test_alone_it_listens_on_loopback_only() -> None:
    settings = agent_settings(
        loaded(origin="s3://b", cache_dir="/c"), SOCKET, {"P2PCACHE_LISTEN": "0.0.0.0:7401"}
    )
    assert (settings.listen, settings.cache_dir, settings.origin, settings.tracker) == (
        "127.0.0.1:0",
        "/c",
        "s3://b",
        "",
    )


def test_a_member_needs_the_cluster_key() -> None:
    with pytest.raises(UsageError, match="P2PCACHE_CLUSTER_KEY_FILE"):
        agent_settings(loaded(tracker="http://t:7400"), SOCKET, {})
    member = agent_settings(
        loaded(tracker="http://t:7400"), SOCKET, {"P2PCACHE_CLUSTER_KEY_FILE": "/key"}
    )
    assert (member.listen, member.tracker) == ("0.0.0.0:0", "http://t:7400")


def test_without_the_key_it_works_alone_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    settings = agent_settings(loaded(tracker="http://t:7400", origin="s3://b"), SOCKET, {})
    assert (settings.listen, settings.tracker) == ("127.0.0.1:0", "")
    assert "working alone" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_on_one_machine_no_key_is_needed(host: str) -> None:
    settings = agent_settings(loaded(tracker=f"http://{host}:7400"), SOCKET, {})
    assert (settings.listen, settings.tracker) == ("127.0.0.1:0", f"http://{host}:7400")

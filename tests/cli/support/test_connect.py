"""Which agent a command talks to."""

from pathlib import Path

import pytest

from p2pcache.cli.support import connect
from p2pcache.errors import Unreachable
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent, fake_agent
from tests.cli.loaded_settings import loaded


def test_the_first_local_socket_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect.find_agent(loaded()) is None
    (tmp_path / "op").mkdir()
    (tmp_path / "client").mkdir()
    both = (str(tmp_path / "op/agent.sock"), str(tmp_path / "client/agent.sock"))
    monkeypatch.setattr(connect, "DEFAULT_SOCKETS", both)
    with fake_agent(tmp_path / "client"):
        found = connect.find_agent(loaded())
        assert found
        assert found.address == f"unix://{both[1]}"
        with fake_agent(tmp_path / "op"):
            found = connect.find_agent(loaded())
            assert found
            assert found.address == f"unix://{both[0]}"
            monkeypatch.setattr("os.access", lambda path, _mode: path == both[1])
            found = connect.find_agent(loaded())
            assert found
            assert found.address == f"unix://{both[1]}"


def test_a_file_at_the_default_path_is_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(connect, "DEFAULT_SOCKETS", (str(tmp_path / "file"),))
    assert connect.find_agent(loaded()) is None


def test_a_flag_that_means_no_daemon_beats_the_local_socket(
    agent: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "DEFAULT_SOCKETS", (agent.address.removeprefix("unix://"),))
    assert connect.find_agent(loaded(origin="s3://x")) is not None
    assert connect.find_agent(loaded({"origin": "flag"}, origin="s3://x")) is None


def test_the_token_goes_to_the_agent(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    agent.document("GET /v1/models", {"models": []})
    run("ls", "--agent", agent.address, "--token-file", tmp_path / "token")
    assert agent.seen[0][2]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("command", ["ps", "nodes", "status"])
def test_commands_that_mean_nothing_without_an_agent(run: Run, command: str) -> None:
    error = run(command).exception
    assert isinstance(error, Unreachable)
    assert "p2pcache agent" in str(error)

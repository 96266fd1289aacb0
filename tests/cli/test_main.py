import json
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import click
import pytest

from p2pcache import __version__
from p2pcache.cli import main
from p2pcache.cli.standalone.embedded import agent_settings
from p2pcache.cli.support import connect
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.cli.support.connect import Loaded
from p2pcache.core.format.manifest import FORMAT
from p2pcache.core.protocol.handshake import VERSIONS
from p2pcache.errors import UsageError
from p2pcache.io import config
from p2pcache.io.disk.agent_db import SCHEMA_VERSION
from p2pcache.io.origins.repo import ROOT
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent, fake_agent

NAMES = [name for entries in main.COMMANDS.values() for name in entries]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    command = main.cli.get_command(click.Context(main.cli), name)
    assert command is not None
    if not isinstance(command, click.Group):
        assert "Examples:\n" in result.output
        assert f"  p2pcache {name}" in result.output or f"(p2pcache {name}" in result.output
        assert all(isinstance(p, click.Argument) or p.help for p in command.params), (
            "an option without help"
        )
    assert all(len(line) <= 100 for line in result.output.splitlines())


def test_the_help_lists_every_command_with_its_own_first_line(run: Run) -> None:
    text = run("--help").output
    for entries in main.COMMANDS.values():
        for name, entry in entries.items():
            assert f"  {name} " in text
            command = main.cli.get_command(click.Context(main.cli), name)
            assert command
            assert (command.help or "").startswith(entry.help)


def test_every_command_is_in_the_documentation() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()
    missing = [
        name for entries in main.COMMANDS.values() for name in entries if f"`{name}" not in page
    ]
    assert missing == []


def test_version_says_what_it_is(run: Run) -> None:
    assert run("--version").stdout == f"p2pcache {__version__}\n"
    first, *more = run("version").stdout.splitlines()
    assert first == f"p2pcache {__version__}"
    said = dict(line.split(":", 1) for line in more)
    assert list(said) == ["commit", "python", "uvloop", "blake3", "formats"]
    assert said["python"].strip() == platform.python_version()
    assert said["blake3"].strip() == metadata.version("blake3")
    assert said["formats"].strip() == (
        f"wire 1, cache {SCHEMA_VERSION}, origin p2pcache/v1, manifest p2pcache.manifest.v1"
    )


def test_version_for_programs(run: Run) -> None:
    said = json.loads(run("version", "--json").stdout)
    assert said["version"] == __version__
    assert said["uvloop"] == metadata.version("uvloop")
    assert said["formats"] == {
        "wire": list(VERSIONS), "cache": SCHEMA_VERSION, "origin": ROOT, "manifest": FORMAT,
    }  # fmt: skip
    assert said.keys() == {"version", "commit", "python", "uvloop", "blake3", "formats"}


def test_a_misspelt_command_is_a_usage_error(run: Run) -> None:
    result = run("pul")
    assert result.exit_code == 2
    assert "No such command 'pul' (did you mean 'pull'?)\n" in result.stderr


@pytest.mark.parametrize("args", [[], ["config"]])
def test_a_bare_group_helps(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with keeping_signals():
        assert main.main(args) == 0
    assert capsys.readouterr().out.startswith("Usage: p2pcache")


def test_the_second_signal_does_not_wait() -> None:
    with keeping_signals():
        with pytest.raises(main.Interrupted):
            main._interrupt(signal.SIGINT, None)
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is main._force


def test_a_bug_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(main.cli, "main", broken)
    with keeping_signals():
        assert main.main(["ls"]) == 1
        assert "this is a bug: KeyError: 'x'" in capsys.readouterr().err
        monkeypatch.setenv("P2PCACHE_DEBUG", "1")
        with pytest.raises(KeyError):
            main.main(["ls"])


@contextmanager
def keeping_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_bad_value_names_the_flag_as_it_was_typed(run: Run) -> None:
    assert str(run("ls", "--timeout", "soon").exception).startswith("--timeout: not a duration")


# -- which agent -------------------------------------------------------------------------------


def loaded(sources: dict[str, str] | None = None, **settings: str) -> Loaded:
    made = ClientSettings(**settings)  # type: ignore[arg-type]
    known = dict.fromkeys(ClientSettings.__struct_fields__, "default")
    return Loaded(made, known | (sources or {}), config.ConfigFile(None, {}))


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


@pytest.mark.parametrize(
    ("xdg", "where"),
    [
        ("/x", "/x/p2pcache"),
        ("relative", "/home/me/.cache/p2pcache"),
        ("", "/home/me/.cache/p2pcache"),
    ],
)
def test_the_cache_of_a_user(monkeypatch: pytest.MonkeyPatch, xdg: str, where: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert connect.cache_dir(ClientSettings()) == Path(where)
    assert connect.cache_dir(ClientSettings(cache_dir="~/c")) == Path("/home/me/c")


# -- the agent inside a command ------------------------------------------------------------------

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


def test_agent_and_config_may_stand_in_front_of_the_command(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/no.sock"
    assert main.main(["--agent", address, "ls"]) == main.main(["ls", "--agent", address]) == 8
    assert main.main(["--config", str(tmp_path / "none.toml"), "ls"]) == 3

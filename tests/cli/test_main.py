import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from p2pcache.cli import main
from p2pcache.cli.commands.cluster.keep import keep
from p2pcache.cli.main import module_of
from p2pcache.cli.support.interrupted import Interrupted
from tests.cli.conftest import Run

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = [word for part in main.COMMANDS.values() for word in part]


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


def test_each_command_has_a_module_of_its_own() -> None:
    folders = {
        folder.name: {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
        for folder in (REPOSITORY / "cli/commands").iterdir()
        if folder.is_dir() and folder.name != "__pycache__"
    }
    assert folders == {
        folder: {module_of(word) for word in part} for folder, part in main.COMMANDS.items()
    }


def test_the_help_lists_every_command_with_its_own_first_line(run: Run) -> None:
    text = run("--help").output
    for part in main.COMMANDS.values():
        for word, line in part.items():
            assert f"  {word} " in text
            command = main.cli.get_command(click.Context(main.cli), word)
            assert command
            assert (command.help or "").startswith(line)


def test_every_command_is_in_the_documentation() -> None:
    page = (REPOSITORY / "docs/cli.md").read_text()
    assert [word for word in NAMES if f"`{word}" not in page] == []


def test_a_number_that_is_none_is_told_in_plain_words() -> None:
    """It was "not a valid integer range", where a number is wanted."""
    context = click.Context(keep, info_name="keep")
    with pytest.raises(click.UsageError) as caught:
        keep.parse_args(context, ["team/m", "--copies", "two"])
    assert "'two' is not a whole number" in main._usage_message(caught.value)


@pytest.mark.parametrize(("typed", "meant"), main.ELSEWHERE.items())
def test_words_of_other_programs_find_ours(run: Run, typed: str, meant: str) -> None:
    assert meant in NAMES
    assert typed not in NAMES
    result = run(typed, "x")
    assert result.exit_code == 2
    assert f"(did you mean {meant!r}?)" in result.stderr


@pytest.mark.parametrize(("typed", "meant"), main.OPTIONS_ELSEWHERE.items())
def test_options_of_other_programs_find_ours(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--local-dir was taken for --cache-dir, which is a cache of the command's own."""
    with keeping_signals():
        assert main.main(["pull", "team/m:v1", typed, "x"]) == 2
    assert f"No such option {typed!r} (did you mean {meant!r}?);" in capsys.readouterr().err


def test_a_misspelt_command_is_a_usage_error(run: Run) -> None:
    result = run("pul")
    assert result.exit_code == 2
    assert "No such command 'pul' (did you mean 'pull'?)\n" in result.stderr


@pytest.mark.parametrize("args", [[], ["config"]])
def test_a_bare_group_helps(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with keeping_signals():
        assert main.main(args) == 0
    assert capsys.readouterr().out.startswith("Usage: p2pcache")


def test_the_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    with keeping_signals():
        with pytest.raises(Interrupted):
            main._interrupt(signal.SIGINT, None)
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(main, "ONE_WISH_S", 60.0)
        signal.raise_signal(signal.SIGTERM)
        assert ended == []
        monkeypatch.setattr(main, "ONE_WISH_S", 0.0)
        signal.raise_signal(signal.SIGTERM)
        assert ended == [143]


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


def test_a_broken_pipe_that_is_not_stdout_is_an_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Click ends with `SystemExit` for every one: a `push` whose connection broke was exit 0 without a word."""

    @click.command
    def breaks() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        with ours:
            ours.sendall(b"x")

    monkeypatch.setattr(main.Commands, "get_command", lambda *_: breaks)
    for name in ("stdout", "stderr"):  # click wraps both
        monkeypatch.setattr(sys, name, getattr(sys, name))
    with keeping_signals():
        assert main.main(["push"]) == 1
    assert "BrokenPipeError" in capfd.readouterr().err


@contextmanager
def keeping_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_agent_and_config_may_stand_in_front_of_the_command(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/no.sock"
    assert main.main(["--agent", address, "ls"]) == main.main(["ls", "--agent", address]) == 8
    assert main.main(["--config", str(tmp_path / "none.toml"), "ls"]) == 3

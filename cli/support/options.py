"""The common parts of commands: a help text with examples, path arguments, --config, --json, --quiet, --yes."""

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    TextType = click.ParamType[str]
else:  # click 8.2 has no generic one
    TextType = click.ParamType


class Command(click.Command):
    """A command whose help text is printed as it is written: examples keep their lines."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring, dedented."""
        formatter.write_paragraph()
        with formatter.indentation():
            for line in inspect.cleandoc(self.help or "").splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}".rstrip() + "\n")


class PathType(TextType):
    """A path, which the shell completes itself. The command checks the value."""

    def __init__(self, kind: str) -> None:
        """`kind` is "dir" or "file": the words that the completion scripts know."""
        self.name = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask the shell for its own completion of paths."""
        return [CompletionItem(incomplete, type=self.name)]


class WordsType(TextType):
    """One of some words, which the shell completes. The settings check the value."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the words."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


DIR = PathType("dir")
FILE = PathType("file")
PATH_TYPES = {"DIR": DIR, "FILE": FILE, "PATH": FILE}  # by metavar

config_option = click.option(
    "--config", metavar="FILE", type=FILE, default=None,
    help="Settings file (TOML) [default: /etc/p2pcache/config.toml if it exists].",
)  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable output on stdout."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Don't ask.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress; errors only.")


def on_terminal() -> bool:
    """Tell whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str) -> bool:
    """Ask; whether the answer is yes."""
    return click.confirm(question, err=True)

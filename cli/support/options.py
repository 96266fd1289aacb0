"""Command-line options made from a room's settings class, so that each setting is described once."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import click
import msgspec

from p2pcache.cli.support.ref_argument import DIR, FILE

_METAVARS = (("_bytes_per_s", "RATE"), ("_bytes", "SIZE"), ("_s", "DURATION"), ("_file", "FILE"),
             ("tls_cert", "FILE"), ("tls_key", "FILE"), ("tls_ca", "FILE"),
             ("_dir", "DIR"), ("socket", "PATH"), ("listen", "HOST:PORT"),
             ("advertise", "HOST:PORT"), ("origin", "URL"), ("tracker", "URL"))  # fmt: skip


PLACES = {"DIR": DIR, "FILE": FILE, "PATH": FILE}  # by the word in the help


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring below each field of a settings class, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return docs


def metavar(field: str) -> str:
    """What a value of this field is called in help texts and in docs/settings.md."""
    return next((word for ending, word in _METAVARS if field.endswith(ending)), "TEXT")


def default_text(field: str, value: object) -> str:
    """A default as a person would write it, "" where it means "none" or "automatic"."""
    if isinstance(value, bool) or value in ("", 0):
        return ""
    if field.endswith("_bytes") and isinstance(value, int) and value % (1 << 20) == 0:
        return f"{value >> 30}GiB" if value % (1 << 30) == 0 else f"{value >> 20}MiB"
    if metavar(field) == "DURATION" and isinstance(value, int | float):
        return f"{value / 86400:g}d" if value % 86400 == 0 else f"{value:g}s"
    return str(value)


def setting_options(
    kind: type[msgspec.Struct],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: one option per field of `kind`; a value that isn't given is None."""
    docs = field_docs(kind)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(msgspec.structs.fields(kind)):
            flag = f"--{field.name.replace('_', '-')}"
            text = docs.get(field.name, "")
            if field.type is bool:
                option = click.option(flag, is_flag=True, default=None, help=text)
            else:
                shown = default_text(field.name, field.default)
                text = f"{text} [default: {shown}]" if shown else text
                word = (
                    "NUMBER"
                    if field.type is int and metavar(field.name) == "TEXT"
                    else metavar(field.name)
                )
                option = click.option(
                    flag, default=None, metavar=word, type=PLACES.get(word), help=text
                )
            function = option(function)
        return function

    return decorate


class Command(click.Command):
    """A command whose help text is printed as it is written: examples keep their lines."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The docstring, dedented."""
        formatter.write_paragraph()
        with formatter.indentation():
            for line in inspect.cleandoc(self.help or "").splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}".rstrip() + "\n")


config_option = click.option(
    "--config", metavar="FILE", type=FILE, default=None,
    help="Settings file (TOML) [default: /etc/p2pcache/config.toml if it exists].",
)  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable output on stdout."
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress; errors only.")

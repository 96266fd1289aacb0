"""Options that are made from a settings class, so that each setting is described once."""

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from p2pcache.cli.support.options import PATH_TYPES, WordsType
from p2pcache.io import config

_METAVARS = (("_bytes_per_s", "RATE"), ("_bytes", "SIZE"), ("_s", "DURATION"), ("_file", "FILE"),
             ("tls_cert", "FILE"), ("tls_key", "FILE"), ("tls_ca", "FILE"),
             ("_dir", "DIR"), ("socket", "PATH"), ("listen", "HOST:PORT"),
             ("advertise", "HOST:PORT"), ("origin", "URL"), ("tracker", "URL"))  # fmt: skip


def setting_options(
    kind: type[msgspec.Struct],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with one option for each field of `kind`; an option not given is None."""
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
                word = metavar(field.name)
                if field.type is int and word == "TEXT":
                    word = "NUMBER"
                words = (
                    [str(each) for each in get_args(field.type)]
                    if get_origin(field.type) is Literal
                    else []
                )
                kind_of = WordsType(words) if words else PATH_TYPES.get(word)
                word = f"[{'|'.join(words)}]" if words else word
                several = field.name in config.LISTS
                option = click.option(
                    flag, default=None, metavar=word, type=kind_of, help=text,
                    multiple=several, callback=given if several else None,
                )  # fmt: skip
            function = option(function)
        return function

    return decorate


def given(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """The values of an option that may be repeated; None: it wasn't given."""
    return values or None


def read_settings(
    kind: type[config.S], section: str, path: str | None, flags: Mapping[str, Any]
) -> config.S:
    """Settings from flags, environment, file and defaults, in this order.

    Args:
        kind: the settings class.
        section: its section in the file.
        path: the settings file of --config; None: the usual one, if it exists.
        flags: values of the command line by field name; None: not given.

    Raises:
        UsageError: a value or a key is wrong.
        NotFound: no file at `path`.
    """
    file = config.read_file(config.find_file(path, os.environ))
    return config.load(kind, section, file=file, environ=os.environ, flags=flags).settings


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field of a settings class, by field name."""
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
    """Return the word that stands for a field's value in help texts and in docs/settings.md."""
    return next((word for ending, word in _METAVARS if field.endswith(ending)), "TEXT")


def default_text(field: str, value: object) -> str:
    """Write a default as a person would; "" where it means "none" or "automatic"."""
    if isinstance(value, bool) or value in ("", 0):
        return ""
    if field.endswith("_bytes") and isinstance(value, int) and value % (1 << 20) == 0:
        return f"{value >> 30}GiB" if value % (1 << 30) == 0 else f"{value >> 20}MiB"
    if metavar(field) == "DURATION" and isinstance(value, int | float):
        return f"{value / 86400:g}d" if value % 86400 == 0 else f"{value:g}s"
    return str(value)

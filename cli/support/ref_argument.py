"""Kinds of arguments, for a shell's Tab key. Values are taken as they come; who uses them checks them."""

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    Text = click.ParamType[str]
else:  # click 8.2 has no generic one
    Text = click.ParamType


class Place(Text):
    """A path: the shell completes it itself."""

    def __init__(self, kind: str) -> None:
        self.name = kind  # "dir" or "file", which the completion scripts know

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The shell's own completion of paths."""
        return [CompletionItem(incomplete, type=self.name)]


class KnownRef(Text):
    """A ref: those of the cache are offered."""

    name = "ref"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Refs of the agent's cache, or of ours. Whatever goes wrong: none, for nobody could read why."""
        try:
            from p2pcache.cli.support.ref_completion import known_refs

            given = {**_said(ctx.find_root()), **_said(ctx)}
            return [CompletionItem(ref) for ref in known_refs(given) if ref.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a Tab key has no place for messages
            return []


def _said(ctx: click.Context) -> dict[str, Any]:
    return {name: value for name, value in ctx.params.items() if value is not None}


DIR = Place("dir")
FILE = Place("file")
REF = KnownRef()

"""Rows of all nodes, as `--cluster` shows them."""

import re
from collections.abc import Sequence
from typing import Any

import click

from p2pcache.cli.support.output import note

cluster_option = click.option(
    "--cluster", is_flag=True, help="On all nodes, as they tell the tracker."
)


def node_heads(*, shown: bool) -> tuple[str, ...]:
    """Return the title of the node's column, if it is shown."""
    return ("NODE",) if shown else ()


def node_cells(row: dict[str, Any], *, shown: bool) -> tuple[object, ...]:
    """Return the name of a row's node, or its id, if it is shown."""
    return (row.get("name") or row.get("node", "-"),) if shown else ()


def without_domain(names: Sequence[str]) -> list[str]:
    """The names without the labels at their end that all of them share: what tells nodes apart comes first."""
    parts = [name.split(".") for name in dict.fromkeys(names)]
    shared = 0
    while parts and all(
        len(p) > shared + 1 and p[-1 - shared] == parts[0][-1 - shared] for p in parts
    ):
        shared += 1
    return [name.rsplit(".", shared)[0] if shared else name for name in names]


def natural_order(text: str) -> list[tuple[int, str]]:
    """A key to sort by: "node-2" comes before "node-10"."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)
    ]


def say_unheard(told: dict[str, Any]) -> None:
    """Say how many nodes aren't among the rows."""
    if silent := told.get("silent"):
        note(f"note: {silent} nodes didn't answer in time; they are left out")
    if older := told.get("older"):
        note(f"note: {older} nodes of an older release can't be asked; they are left out")

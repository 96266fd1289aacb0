"""Rows of all nodes, as `--cluster` shows them."""

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


def say_unheard(told: dict[str, Any]) -> None:
    """Say how many nodes aren't among the rows."""
    if silent := told.get("silent"):
        note(f"note: {silent} nodes didn't answer in time; they are left out")
    if older := told.get("older"):
        note(f"note: {older} nodes of an older release can't be asked; they are left out")

"""`pins`: list pins and holds."""

import time
from typing import Any

import click

from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.core.units import format_duration


@click.command(cls=Command)
@output_options
@client_options()
def pins(as_json: bool, wide: bool, loaded: Loaded) -> None:
    """List pins and holds: why models stay here.

    A pin is an operator's reason, a hold a reader's. LEFT is the time until it ends by itself; a
    hold with a process ends with it, too. Only models of your namespaces are shown.

    Examples:
      p2pcache pins
      p2pcache pins --json | jq -r '.pins[] | select(.kind == "hold") | .name'
    """
    rows = need_agent(loaded).pins()
    if as_json:
        emit_document({"pins": rows})
        return
    table(
        ("KIND", "NAME", "REF", "LEFT", "PID"),
        [(r["kind"], r["name"], r["ref"], _left(r), str(r["pid"] or "-")) for r in rows],
        right=(3, 4),
        drop=("PID", "KIND"),
        cut=("NAME", "REF"),
        wide=wide,
    )


def _left(row: dict[str, Any]) -> str:
    return format_duration(max(0.0, row["ends"] - time.time())) if row["ends"] else "-"

"""`history`: list what ended on this node."""

import time
from typing import Any

import click

from p2pcache.cli.rows.cluster_rows import (
    cluster_option,
    node_cells,
    node_heads,
    say_unheard,
    without_domain,
)
from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.describe import history_result
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.core.units import format_bytes, format_duration, parse_duration
from p2pcache.errors import Cancelled

KEPT = 1000  # rows that a node keeps
USUAL = 20  # rows that are shown


@click.command(cls=Command)
@click.option(
    "-n", "--limit", type=click.IntRange(1, KEPT), help="Rows [default: 20; with --since all]."
)
@click.option("--failed", is_flag=True, help="Only what failed.")
@click.option("--since", metavar="DURATION", help="Only what ended in the last 90s, 5m, 1h, 7d ..")
@cluster_option
@output_options
@client_options("cache_dir")
def history(
    limit: int | None,
    failed: bool,
    since: str | None,
    cluster: bool,
    as_json: bool,
    wide: bool,
    loaded: Loaded,
) -> None:
    """List what ended: pulls, pushes, removals.

    The newest first. A pull is one row however many clients waited for it; a pull of a model that
    was complete here already is none. A failure that repeats itself is one row, with its count. PEERS
    is the share that came from peers, of what came over the network.

    Examples:
      p2pcache history
      p2pcache history --failed -n 5
      p2pcache history --since 1h --cluster
      p2pcache history --json | jq '.history[] | select(.action == "pull") | .seconds'
    """
    after = time.time() - parse_duration(since) if since else 0.0
    most = limit or (KEPT if since else USUAL)
    asked = KEPT if failed else most
    if cluster:
        told = need_agent(loaded).cluster_history(asked)
    else:
        with cache_or_agent(loaded) as cache:
            told = {"history": cache.history(asked)}
    rows = [row for row in told["history"] if row["ended"] >= after]
    if failed:
        rows = [row for row in rows if row["code"] not in (0, Cancelled.exit_code)]
    rows = rows[:most]
    if as_json:
        emit_document(told | {"history": rows})
        return
    heads = (
        "WHEN",
        *node_heads(shown=cluster),
        "ACTION",
        "REF",
        "SIZE",
        "TIME",
        "RATE",
        "PEERS",
        "RESULT",
    )
    right = [heads.index(title) for title in ("SIZE", "TIME", "RATE", "PEERS")]
    cells = [_cells(row, cluster=cluster) for row in rows]
    drop, cut = ("PEERS", "RATE", "TIME", "SIZE"), ("NODE", "REF", "RESULT")
    short = {"WHEN": [_short_when(row["ended"]) for row in rows]}
    if cluster:
        short["NODE"] = without_domain([str(node_cells(row, shown=True)[0]) for row in rows])
    table(heads, cells, right, drop=drop, short=short, cut=cut, wide=wide)
    say_unheard(told)


def _short_when(ended: float) -> str:
    """The time of today, or the date."""
    then = time.localtime(ended)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d", then)


def _cells(row: dict[str, Any], *, cluster: bool) -> tuple[object, ...]:
    """Return one line of the table."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["ended"]))
    rate = (
        f"{format_bytes(row['rate'])}/s"
        if row["rate"] and row["action"] in ("pull", "warm")
        else "-"
    )
    moved = row["bytes_peers"] + row["bytes_origin"]
    share = f"{row['bytes_peers'] / moved:.0%}" if moved else "-"
    size = format_bytes(row["bytes"]) if row["bytes"] else "-"
    return (
        when, *node_cells(row, shown=cluster), row["action"], row["ref"] or "-", size,
        format_duration(row["seconds"]), rate, share, history_result(row),
    )  # fmt: skip

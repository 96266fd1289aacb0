"""`df`: say how full the caches are."""

from typing import Any

import click

from p2pcache.cli.rows.cluster_rows import cluster_option, node_cells, node_heads, say_unheard
from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.core.units import format_bytes

_SUMMED = (
    "capacity_bytes",
    "limit_bytes",
    "used_bytes",
    "held_bytes",
    "kept_bytes",
    "evictable_bytes",
)


@click.command(cls=Command)
@cluster_option
@output_options
@client_options()
def df(cluster: bool, as_json: bool, wide: bool, loaded: Loaded) -> None:
    """Say how full the cache is; with --cluster every node's, and the pool's sum.

    CAPACITY is the disk, LIMIT what the cache may take of it (cache_quota, or all). HELD is pinned,
    held or in use; KEPT is here because the cluster keeps it here (`p2pcache keep`); EVICTABLE would
    go if room were needed.

    Examples:
      p2pcache df
      p2pcache df --cluster
    """
    client = need_agent(loaded)
    told: dict[str, Any] = client.cluster_room() if cluster else {"room": [client.room()]}
    rows = sorted(told["room"], key=lambda row: str(row.get("name") or row.get("node", "")))
    if cluster:
        told = {
            **told,
            "room": rows,
            "sum": {k: sum(row.get(k, 0) for row in rows) for k in _SUMMED},
        }
    if as_json:
        emit_document(told if cluster else rows[0])
        return
    shown = [*rows, *([{**told["sum"], "name": "(pool)"}] if cluster else ())]
    heads = (
        *node_heads(shown=cluster),
        "CAPACITY",
        "LIMIT",
        "USED",
        "USE",
        "HELD",
        "KEPT",
        "EVICTABLE",
        "MODELS",
    )
    right = [n for n, title in enumerate(heads) if title != "NODE"]
    drop, cut = ("MODELS", "CAPACITY", "HELD", "KEPT"), ("NODE",)
    table(
        heads, [_cells(row, cluster=cluster) for row in shown], right, drop=drop, cut=cut, wide=wide
    )
    say_unheard(told)


def _cells(row: dict[str, Any], *, cluster: bool) -> tuple[object, ...]:
    return (
        *node_cells(row, shown=cluster),
        *(format_bytes(row[key]) for key in ("capacity_bytes", "limit_bytes", "used_bytes")),
        f"{row['used_bytes'] / max(1, row['limit_bytes']):.0%}",
        *(format_bytes(row.get(key, 0)) for key in ("held_bytes", "kept_bytes", "evictable_bytes")),
        row.get("models", "-"),
    )  # fmt: skip

"""`ps`: show the pulls that run now."""

import click

from p2pcache.cli.rows.cluster_rows import (
    cluster_option,
    node_cells,
    node_heads,
    say_unheard,
    without_domain,
)
from p2pcache.cli.rows.tables import SHORT_DIGEST, output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.cli.support.progress import peer_share
from p2pcache.core.units import format_bytes, format_duration


@click.command(cls=Command)
@cluster_option
@output_options
@client_options()
def ps(cluster: bool, as_json: bool, wide: bool, loaded: Loaded) -> None:
    """Show the pulls that run now.

    Two pulls of one ref are of two models: its tag has moved, and the earlier pull goes on.

    Examples:
      p2pcache ps
      p2pcache ps --cluster
      watch p2pcache ps
    """
    client = need_agent(loaded)
    told = client.cluster_pulls() if cluster else {"pulls": client.pulls()}
    if as_json:
        emit_document(told)
        return
    pulls = told["pulls"]
    rows = [
        (
            *node_cells(p, shown=cluster), p["ref"], p["digest"][:SHORT_DIGEST], p.get("kind", "pull"),
            f"{p['bytes_done'] / max(1, p['bytes_total']):.0%}",
            format_bytes(p["bytes_total"]),
            f"{format_bytes(p['rate'])}/s", format_duration(p["eta_s"]) if p.get("eta_s") is not None else "-",
            p.get("peers", "-"), peer_share({**p, "peers": None}) or "-",
        )
        for p in pulls
    ]  # fmt: skip
    heads = (
        *node_heads(shown=cluster),
        "REF",
        "DIGEST",
        "KIND",
        "DONE",
        "SIZE",
        "RATE",
        "ETA",
        "PEERS",
        "SHARE",
    )
    right = [heads.index(title) for title in ("DONE", "SIZE", "RATE", "ETA", "PEERS")]
    drop, cut = ("PEERS", "SIZE", "KIND", "SHARE", "DIGEST"), ("NODE", "REF", "SHARE")
    names = without_domain([str(node_cells(p, shown=True)[0]) for p in pulls])
    short = {"NODE": names} if cluster else {}
    table(heads, rows, right, drop=drop, short=short, cut=cut, wide=wide)
    say_unheard(told)

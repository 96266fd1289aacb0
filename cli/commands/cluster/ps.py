"""`ps`: show the pulls that run now."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.cli.support.progress import peer_share
from p2pcache.cli.support.tables import output_options, table
from p2pcache.core.units import format_bytes, format_duration


@click.command(cls=Command)
@output_options
@client_options()
def ps(as_json: bool, wide: bool, loaded: Loaded) -> None:
    """Show the pulls that run now.

    Examples:
      p2pcache ps
      watch p2pcache ps
    """
    pulls = need_agent(loaded).pulls()
    if as_json:
        emit_document({"pulls": pulls})
        return
    rows = [
        (
            p["ref"], p.get("kind", "pull"), f"{p['bytes_done'] / max(1, p['bytes_total']):.0%}",
            format_bytes(p["bytes_total"]),
            f"{format_bytes(p['rate'])}/s", format_duration(p["eta_s"]) if p.get("eta_s") is not None else "-",
            p.get("peers", "-"), peer_share({**p, "peers": None}) or "-",
        )
        for p in pulls
    ]  # fmt: skip
    heads = ("REF", "KIND", "DONE", "SIZE", "RATE", "ETA", "PEERS", "SHARE")
    table(
        heads,
        rows,
        right=(2, 3, 4, 5, 6),
        drop=("PEERS", "SIZE", "KIND", "SHARE"),
        cut=("REF",),
        wide=wide,
    )

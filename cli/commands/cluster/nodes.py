"""`nodes`: list the members of the cluster."""

from typing import Any

import click

from p2pcache.cli.rows.cluster_rows import natural_order, without_domain
from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.core.units import format_bytes, format_duration


@click.command(cls=Command)
@output_options
@client_options()
def nodes(as_json: bool, wide: bool, loaded: Loaded) -> None:
    """List the cluster's nodes.

    As the tracker knows them. STATUS is up, reconnecting, unreached (others can't dial it), and for
    an hour lost (no sign of life for 10 s, no goodbye) or left.

    Examples:
      p2pcache nodes
      p2pcache nodes --json | jq '.nodes | length'
    """
    known, gone = need_agent(loaded).nodes_and_gone()
    if as_json:
        emit_document({"nodes": known, "gone": gone})
        return
    listed = [*sorted(known, key=_by_name), *gone]
    rows = [
        (
            n.get("node", "-"), n.get("name") or "-", _status(n), n.get("address", "-"), n.get("rack") or "-",
            n.get("site") or "-", n.get("version", "-"), n.get("models", "-"), _size(n, "cached_bytes"),
            _size(n, "free_bytes"), n.get("load", "-"),
            f"{format_duration(n.get('last_seen_s', n.get('gone_s', 0)))} ago",
        )
        for n in listed
    ]  # fmt: skip
    heads = (
        "NODE",
        "NAME",
        "STATUS",
        "ADDRESS",
        "RACK",
        "SITE",
        "VERSION",
        "MODELS",
        "CACHED",
        "FREE",
        "LOAD",
        "SEEN",
    )
    table(
        heads,
        rows,
        right=(7, 8, 9, 10),
        drop=("SITE", "VERSION", "LOAD", "RACK", "NODE", "CACHED", "MODELS"),
        short={"NAME": without_domain([str(row[1]) for row in rows])},
        cut=("NAME", "ADDRESS", "SEEN"),
        wide=wide,
    )


def _by_name(node: dict[str, Any]) -> list[tuple[int, str]]:
    return natural_order(str(node.get("name") or node.get("node", "")))


def _status(node: dict[str, Any]) -> str:
    if "gone_s" in node:
        return "lost" if node.get("lost") else "left"
    if not node.get("connected", True):
        return "reconnecting"
    return "unreached" if node.get("unreached") else "up"


def _size(node: dict[str, Any], key: str) -> str:
    """Return a size of a heartbeat, "-" before the first one: then both sizes are 0, as on no disk."""
    known = node.get("cached_bytes") or node.get("free_bytes")
    return format_bytes(node.get(key, 0)) if known else "-"

"""`nodes`: list the members of the cluster, or empty one."""

from typing import Any

import click

from p2pcache.cli.rows.cluster_rows import natural_order, without_domain
from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.ref_argument import NODE
from p2pcache.core.units import format_bytes, format_duration


class _Group(Command, click.Group):
    """A command with further words behind it."""


@click.group(cls=_Group, invoke_without_command=True)
@output_options
@client_options()
@click.pass_context
def nodes(ctx: click.Context, as_json: bool, wide: bool, loaded: Loaded) -> None:
    """List the cluster's nodes, or empty one.

    As the tracker knows them. STATUS is up, reconnecting, unreached (others can't dial it), and for
    an hour lost (no sign of life for 10 s, no goodbye) or left. KEPT is what the node is to keep for
    the cluster (`p2pcache keep`); a node that is emptied is draining, then drained.

    Examples:
      p2pcache nodes
      p2pcache nodes --json | jq '.nodes | length'
      p2pcache nodes drain gpu-07
    """
    if ctx.invoked_subcommand is not None:
        ctx.default_map = {"drain": dict(ctx.default_map or {})}
        return
    known, gone = need_agent(loaded).nodes_and_gone()
    if as_json:
        emit_document({"nodes": known, "gone": gone})
        return
    listed = [*sorted(known, key=_by_name), *gone]
    rows = [
        (
            n.get("node", "-"), n.get("name") or "-", _status(n), n.get("address", "-"), n.get("rack") or "-",
            n.get("site") or "-", n.get("version", "-"), n.get("models", "-"), _size(n, "cached_bytes"),
            _size(n, "free_bytes"), _size(n, "kept_bytes"), n.get("load", "-"),
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
        "KEPT",
        "LOAD",
        "SEEN",
    )
    table(
        heads,
        rows,
        right=(7, 8, 9, 10, 11),
        drop=("SITE", "VERSION", "LOAD", "RACK", "KEPT", "NODE", "CACHED", "MODELS"),
        short={"NAME": without_domain([str(row[1]) for row in rows])},
        cut=("NAME", "ADDRESS", "SEEN"),
        wide=wide,
    )


@nodes.command("drain", cls=Command)
@click.argument("node", type=NODE)
@click.option("--undo", is_flag=True, help="Let it keep parts again.")
@json_option
@client_options()
def drain(node: str, undo: bool, as_json: bool, loaded: Loaded) -> None:
    """Move what a node keeps for the cluster to others, before it is taken away.

    NODE is a name or an id of `p2pcache nodes`. The node keeps each part until others have it; then
    it is `drained`, and its cache may go. Pulls there still work. Of a node that is lost or has left
    others make the parts again at once, from the copies that are left, or from storage. It lasts
    until --undo, also over restarts. For operators.

    Examples:
      p2pcache nodes drain gpu-07
      p2pcache nodes drain gpu-07 --undo
    """
    told = need_agent(loaded).drain(node, undo=undo)
    gone = not told.get("here", True)
    if as_json:
        emit_document(told)
    elif undo:
        emit(
            clean(
                f"{told.get('name') or node} keeps parts again{' if it comes back' if gone else ''}"
            )
        )
    else:
        left = format_bytes(told.get("kept_bytes", 0))
        emit(clean(f"{told.get('name') or node}: {told.get('state')}, {left} left"))
        if gone:
            note(
                "note: it is gone: its parts are made again on others without waiting for it; if it comes back, "
                "it keeps only what others don't have yet, until --undo"
            )


def _by_name(node: dict[str, Any]) -> list[tuple[int, str]]:
    return natural_order(str(node.get("name") or node.get("node", "")))


def _status(node: dict[str, Any]) -> str:
    if "gone_s" in node:
        return "lost" if node.get("lost") else "left"
    if not node.get("connected", True):
        return "reconnecting"
    return "unreached" if node.get("unreached") else str(node.get("drain") or "up")


def _size(node: dict[str, Any], key: str) -> str:
    """Return a size of a heartbeat, "-" before the first one: then both sizes are 0, as on no disk."""
    known = node.get("cached_bytes") or node.get("free_bytes")
    return format_bytes(node.get(key, 0)) if known else "-"

"""`locate`: list the nodes that have a model."""

from typing import Any

import click

from p2pcache.cli.rows.tables import output_options, table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.describe import format_ago, less_than_all
from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("ref", type=REF)
@output_options
@client_options()
def locate(ref: str, as_json: bool, wide: bool, loaded: Loaded) -> None:
    """List the nodes that have a model.

    As the tracker knows them, the most complete first. HAS is "full" or the share of a part; STAYS
    says why it stays there: the cluster keeps it (`p2pcache keep`), it is pinned, held. --json adds
    the digest and the label that a Kubernetes Node carries for the model: what a scheduler needs to
    send pods where the bytes are.

    Examples:
      p2pcache locate team/llama:v3
      p2pcache locate team/llama:v3 --json | jq -r '.nodes[] | select(.complete) | .name'
    """
    found = need_agent(loaded).locate(str(Ref.parse(ref)))
    if as_json:
        emit_document(found)
        return
    rows = [
        (
            n.get("node", "-"), n.get("name") or "-", n.get("address", "-"), n.get("rack") or "-",
            n.get("site") or "-", "full" if n.get("complete") else less_than_all(float(n.get("share", 0))),
            _why(n), format_ago(n.get("last_used") or 0.0),
        )
        for n in found.get("nodes", ())
    ]  # fmt: skip
    table(
        ("NODE", "NAME", "ADDRESS", "RACK", "SITE", "HAS", "STAYS", "USED"),
        rows,
        right=(5,),
        drop=("SITE", "RACK", "NODE", "USED"),
        cut=("NAME", "ADDRESS"),
        wide=wide,
    )


def _why(node: dict[str, Any]) -> str:
    words = [word for word in ("kept", "pinned", "held") if node.get(word)]
    return ", ".join(words) or "-"

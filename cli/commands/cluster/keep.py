"""`keep`: keep copies of a model in the cluster, or show what is kept."""

import time
from typing import Any

import click

from p2pcache.cli.rows.tables import table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.errors import NotFound, UsageError
from p2pcache.ids import Ref, as_written
from p2pcache.io.http.client import AgentClient, Json

REPAIRS = 5  # of the last ones that are shown


@click.command(cls=Command)
@click.argument("ref", type=REF, required=False)
@click.option(
    "--copies", type=click.IntRange(min=1), metavar="K",
    help="Each part of it on K nodes; no node needs all of it.",
)  # fmt: skip
@click.option("--whole", type=click.IntRange(min=1), metavar="K", help="All of it, on K nodes.")
@click.option("--all", "everywhere", is_flag=True, help="All of it, on every node.")
@click.option(
    "--nodes", metavar="SELECTOR",
    help="On these: KEY=VALUE,... with rack, site, node, role or a label; alone: all of it on each.",
)  # fmt: skip
@click.option("--off", is_flag=True, help="Keep it no longer.")
@click.option("--list", "listed", is_flag=True, help="Show all that is kept.")
@json_option
@client_options()
def keep(
    ref: str | None,
    copies: int | None,
    whole: int | None,
    everywhere: bool,
    nodes: str | None,
    off: bool,
    listed: bool,
    as_json: bool,
    loaded: Loaded,
) -> None:
    """Keep copies of a model in the cluster, or show what is kept.

    The tracker sees to it from now on, over its own restarts and those of nodes: it spreads the
    parts over nodes by their room, copies in different racks and sites, and makes new ones when a
    node is gone for ten minutes (`keep_grace_s` of the tracker), or is drained. Nodes read from
    each other first, behind every pull. Kept parts aren't evicted.

    Without options it shows how the model stands: COPIES is the number of copies of the part that
    has the fewest, beside the number that is wanted. A tag is kept as a name: when it moves, the
    new version is kept. For operators.

    Examples:
      p2pcache keep team/llama:v3 --copies 2
      p2pcache keep team/llama:v3 --nodes role=seed,site=ams
      p2pcache keep team/llama:v3
      p2pcache keep --list
      p2pcache keep team/llama:v3 --off
    """
    if nodes is not None and not nodes.strip():
        raise UsageError("--nodes is empty: it would choose every node; --all says that")
    given = sum((copies is not None, whole is not None, everywhere, off, listed))
    if given > 1 or (nodes and (everywhere or off or listed)):
        raise UsageError("only one of --copies, --whole, --all, --off and --list makes sense")
    client = need_agent(loaded)
    if ref is None or listed:
        if ref is not None or (ref is None and (given > listed or nodes)):
            raise UsageError(
                "name one model, or list them all: p2pcache keep REF ..., or keep --list"
            )
        _show_all(client.keeps(), as_json=as_json)
        return
    wanted = Ref.parse(ref)
    if off:
        client.keep_off(str(wanted))
        if as_json:
            emit_document({"ref": str(wanted), "off": True})
        else:
            emit(f"{as_written(ref)} isn't kept any more; nodes let go what was brought for it")
        return
    if given or nodes:
        row = client.keep(
            str(wanted), copies=copies or whole or 0, whole=whole is not None,
            everywhere=not (copies or whole), nodes=nodes or "",
        )  # fmt: skip
    else:
        row = _row(client, wanted)
    if as_json:
        emit_document(row)
    else:
        _show(row)


def _row(client: AgentClient, ref: Ref) -> Json:
    for row in client.keeps().get("keeps", ()):
        if row.get("ref") == ref.short:
            return dict(row)
    raise NotFound(f"{ref.short} isn't kept; `p2pcache keep {ref.short} --copies 2` keeps it")


def _show_all(told: Json, *, as_json: bool) -> None:
    if as_json:
        emit_document(told)
        return
    rows = []
    for row in told.get("keeps", ()):
        name, tag = _written(row)
        rows.append(
            (name, tag, format_bytes(row.get("bytes", 0)), copies_of(row), _missing(row), row.get("wish", "-"),
             row.get("holders", 0), row.get("state", "-"), _last_repair(row))
        )  # fmt: skip
    heads = ("NAME", "TAG", "SIZE", "COPIES", "MISSING", "WISH", "NODES", "STATE", "REPAIRED")
    drop = ("NODES", "SIZE", "REPAIRED", "MISSING")
    table(heads, rows, right=(2, 3, 4, 6), drop=drop, cut=("NAME", "TAG", "WISH"))
    if waiting := [row for row in told.get("keeps", ()) if row.get("state") == "waiting"]:
        note(_waits(waiting[0]))
    for drain in told.get("drains", ()):
        left = drain.get("kept_bytes", 0)
        who = clean(drain.get("name") or drain.get("node"))
        state = f"draining: {format_bytes(left)} left" if left else "drained"
        emit(f"node {who} is {state}{'' if drain.get('here', True) else ', and gone'}")


def _show(row: dict[str, Any]) -> None:
    emit(clean(f"{':'.join(_written(row))}: {row.get('wish')}: {row.get('state')}"))
    emit(f"copies   {copies_of(row)} on {counted(row.get('holders', 0), 'node')}")
    if row.get("missing_bytes"):
        emit(f"missing  {format_bytes(row['missing_bytes'])} of copies that are to be made")
    if row.get("missing_places") and row.get("state") == "no room":
        emit(
            f"         {counted(row['missing_places'], 'part')} of it for which no further node has room"
        )
    if row.get("state") == "no nodes":
        emit(
            f"         no node is {row['nodes']} now"
            if row.get("nodes")
            else "         no node is here"
        )
    for refused in row.get("refused", ()):
        who = refused.get("name") or refused.get("node")
        why = [text for text in (refused.get("why"), refused.get("detail")) if text]
        emit(clean(f"refused  {who}: {': '.join(map(str, why))}"))
    for repair in row.get("repairs", ())[:REPAIRS]:
        emit(_repair(repair))
    if row.get("state") == "waiting":
        note(_waits(row))
    if row.get("trouble"):
        note(clean(f"note: what the name means now isn't known: {row['trouble']}"))


def _waits(row: dict[str, Any]) -> str:
    """A note on a tracker that has just started, or taken over."""
    if not row.get("waits_s"):  # a tracker of an older release
        return "note: the tracker is new, and waits for nodes that may only be away"
    began, left = format_duration(row.get("tracker_s", 0.0)), format_duration(row["waits_s"])
    return (
        f"note: the tracker is active since {began} and still hears from nodes; for {left} more it makes no "
        "copies of what nodes may have that are only away"
    )


def _written(row: dict[str, Any]) -> tuple[str, str]:
    """Return name and tag of a row, the name as it was pushed."""
    name, _, tag = str(row["ref"]).rpartition(":")
    return row.get("spelled") or name, tag


def _missing(row: dict[str, Any]) -> str:
    return format_bytes(row["missing_bytes"]) if row.get("missing_bytes") else "-"


def _last_repair(row: dict[str, Any]) -> str:
    ended = [repair for repair in row.get("repairs", ()) if repair.get("ended")]
    return _ended(ended[0]) if ended else "-"


def _ended(repair: dict[str, Any]) -> str:
    ago = format_duration(max(0.0, time.time() - repair["ended"]))
    return f"{ago} ago{_moved(repair)}"


def _repair(repair: dict[str, Any]) -> str:
    """One line about a time in which copies were missing."""
    took = format_duration(
        max(0.0, (repair.get("ended") or time.time()) - repair.get("began", 0.0))
    )
    moved = _moved(repair)
    if not repair.get("ended"):
        return f"repair   goes on since {took}{moved and f'{moved} moved until now'}"
    return f"repaired {_ended(repair)}{moved and ' moved'} in {took}"


def _moved(repair: dict[str, Any]) -> str:
    """Bytes as part of a line; none where no node has told any yet: it does so every few seconds."""
    return f", {format_bytes(repair['bytes'])}" if repair.get("bytes") else ""


def copies_of(row: dict[str, Any]) -> str:
    """Return copies of a row: those of the part that has the fewest, and those that are wanted."""
    return f"{row.get('have', 0)}/{row.get('target', 0) or '-'}"

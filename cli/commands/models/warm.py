"""`warm`: fetch a model before anybody asks for it, here or on several nodes."""

import time
from typing import Any

import click

from p2pcache.cli.rows.tables import table
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import Command, json_option, quiet_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.progress import follow, make_reporter
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes
from p2pcache.errors import NotFound, P2PCacheError, Unreachable, from_code
from p2pcache.ids import Ref, as_written
from p2pcache.io.http.client import AgentClient, Json

LOCATE_EVERY_S = 1.0  # between questions to the tracker while --wait waits for other nodes
_STATES = {
    "started": "warming {ref}: {size}, behind all pulls; `p2pcache ps` shows it",
    "getting": "{ref}: {size}, is on its way to this node already",
    "had": "{ref}: already here, {size}",
}


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--replicas", type=click.IntRange(min=1), metavar="K",
    help="See to it that K nodes of the cluster have it, instead of this one.",
)  # fmt: skip
@click.option("--wait", is_flag=True, help="Return when it is there; shows progress.")
@json_option
@quiet_option
@client_options()
def warm(
    ref: str, replicas: int | None, wait: bool, as_json: bool, quiet: bool, loaded: Loaded
) -> None:  # fmt: skip
    """Fetch a model before anybody asks for it, here or on K nodes.

    It comes after all that somebody waits for: pulls go first, on this node and at its peers. The
    agent goes on by itself; the command returns as soon as the space is set aside (exit 5 where
    there isn't enough). A pull of the same model joins, and makes it as urgent as any pull;
    `p2pcache cancel` ends it.

    With --replicas the tracker counts the nodes that have the model or are getting it, and tells as
    many others as are missing: far apart by site and rack, those with the most free disk first. It
    does so once. A copy that a node loses later stays lost until the command is run again, which
    does no harm. If there are fewer than K in the end, those that can get it do, and the exit code
    says why not more: 5 no space there, 8 no answer, 3 no more nodes.

    Examples:
      p2pcache warm team/llama:v3
      p2pcache warm team/llama:v3 --replicas 4
      p2pcache warm team/llama:v3 --replicas 4 --wait --timeout 1h
    """
    name = as_written(ref)
    client = need_agent(loaded)
    if replicas:
        _warm_replicas(client, name, replicas, wait=wait, as_json=as_json, quiet=quiet)
        return
    began = client.warm(name)
    if wait:
        reporter = make_reporter(f"warming {name}", as_json=as_json, quiet=quiet)
        with saying_what_goes_on(lambda: _goes_on(name)):
            done = follow(client.pull(name, background=True), reporter)
        reporter.done(done, f"{name}: here now, {format_bytes(done['bytes'])}")
    elif as_json:
        emit_document(began)
    elif not quiet:
        text = _STATES.get(str(began.get("state")), _STATES["started"])
        emit(clean(text.format(ref=name, size=format_bytes(began.get("bytes", 0)))))


def _goes_on(ref: str) -> str:
    return f"the agent goes on until {ref} is here; to end it: p2pcache cancel {ref}"


def _warm_replicas(
    client: AgentClient, ref: str, replicas: int, *, wait: bool, as_json: bool, quiet: bool
) -> None:
    """Let the tracker warm the model on other nodes, print what it did, and fail if that isn't enough.

    Raises:
        Unreachable: with `wait`, nodes that were to have the model ended without it.
        P2PCacheError: fewer than `replicas` nodes have or get it, by the first refusal.
    """
    answer = client.warm(ref, replicas)
    rows = [row for row in answer.get("nodes", ()) if isinstance(row, dict)]
    if not as_json and not quiet:
        cells = [
            (
                row.get("node", "-"), row.get("name") or "-", row.get("rack") or "-", row.get("site") or "-",
                row.get("message") or row.get("state", "-"),
            )
            for row in rows
        ]  # fmt: skip
        table(
            ("NODE", "NAME", "RACK", "SITE", "STATE"),
            cells,
            drop=("RACK", "SITE"),
            cut=("NAME", "STATE"),
        )
    if wait:
        with saying_what_goes_on(lambda: f"the nodes go on; to see them: p2pcache locate {ref}"):
            answer["complete"] = _wait_for_nodes(client, ref, answer, quiet=quiet or as_json)
    if as_json:
        emit_document(answer)
    if wait and answer["complete"] < min(replicas, answer["have"]):
        raise Unreachable(
            f"{ref}: only {answer['complete']} of {answer['have']} nodes ended up with it; "
            "`p2pcache history --failed` on the others says why"
        )
    if answer["have"] < replicas:
        raise _too_few(ref, replicas, answer, rows)


def _wait_for_nodes(client: AgentClient, ref: str, answer: Json, *, quiet: bool) -> int:
    """Wait until enough nodes are complete, or no node fetches any more; return how many are complete."""
    enough = min(int(answer["replicas"]), int(answer["have"]))
    reporter = make_reporter(f"warming {ref}", as_json=False, quiet=quiet)
    at_digest = str(Ref.parse(ref)._replace(digest=answer["digest"]))  # the tag may move meanwhile
    try:
        while True:
            found = client.locate(at_digest)
            shares = sorted(
                (float(n.get("share", 0)) for n in found.get("nodes", ())), reverse=True
            )
            complete = sum(bool(n.get("complete")) for n in found.get("nodes", ()))
            size = int(answer.get("bytes", 0))
            done = int(sum(shares[:enough]) * size)
            reporter.update({"event": "progress", "bytes_done": done, "bytes_total": enough * size})
            if complete >= enough or not found.get("getting"):
                break
            time.sleep(LOCATE_EVERY_S)
    finally:
        reporter.close()
    if not quiet:
        note(f"{ref}: complete on {complete} nodes")
    return complete


def _too_few(ref: str, replicas: int, answer: Json, rows: list[dict[str, Any]]) -> P2PCacheError:
    """Return the error that says why fewer than `replicas` nodes have the model or get it."""
    text = f"{answer['have']} of {replicas} nodes have {ref} or get it"
    refused = [row for row in rows if row.get("code")]
    if refused:
        first = refused[0]
        who = first.get("name") or first.get("node")
        others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        return from_code(
            int(first["code"]), clean(f"{text}; {who}{others}: {first.get('message')}")
        )
    older = answer.get("older")
    why = f", and {older} of an older release can't be told" if older else ""
    return NotFound(f"{text}: the cluster has no more{why}; add nodes, or ask for fewer")

"""`cancel`: end pulls and warms that run."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import emit, emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes
from p2pcache.ids import as_written
from p2pcache.io.http.client import Json


@click.command(cls=Command)
@click.argument("refs", type=REF, metavar="REF...", nargs=-1, required=True)
@json_option
@client_options()
def cancel(refs: tuple[str, ...], as_json: bool, loaded: Loaded) -> None:
    """End a pull or a warm on this node, for all who wait for it.

    They end with exit code 130. Chunks that came stay in the cache: a pull resumes there, and
    `p2pcache rm` frees them. It isn't a failed pull: `history` says "cancelled". For operators.

    Examples:
      p2pcache cancel team/llama:v3
      p2pcache ps --json | jq -r '.pulls[].ref' | xargs p2pcache cancel
    """
    wanted = [as_written(ref) for ref in refs]
    client = need_agent(loaded)
    cancelled: list[Json] = []
    try:
        for ref in wanted:
            cancelled.append(client.cancel(ref))
            if not as_json:
                emit(_line(ref, cancelled[-1]))
    finally:  # print what was ended also when an error ends the command
        if as_json and cancelled:
            emit_document({"cancelled": cancelled})


def _line(ref: str, told: Json) -> str:
    if not told.get("bytes_total"):
        return f"cancelled {ref}: it won't begin again"
    size = f"{format_bytes(told['bytes_done'])} of {format_bytes(told['bytes_total'])}"
    return f"cancelled {ref}: {counted(told.get('clients', 0), 'client')} waited, {size} are here and stay"

"""`unpin`: end a model's pins."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--name", default="", metavar="NAME", help="Only this pin [default: all of the model]."
)
@json_option
@client_options()
def unpin(ref: str, name: str, as_json: bool, loaded: Loaded) -> None:
    """End a model's pins.

    REF is as it was pinned: a tag, or a digest. Exit 3 if there is no such pin. For operators.

    Examples:
      p2pcache unpin team/llama:v3
      p2pcache unpin team/llama:v3 --name demo
    """
    wanted = Ref.parse(ref)
    answer = need_agent(loaded).unpin(str(wanted), name)
    if as_json:
        emit_document(answer)
        return
    for row in answer["unpinned"]:
        emit(f"unpinned {clean(row['ref'])} by {clean(row['name'])}")

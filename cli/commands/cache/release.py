"""`release`: end the holds of a name."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document


@click.command(cls=Command)
@click.argument("name")
@json_option
@client_options()
def release(name: str, as_json: bool, loaded: Loaded) -> None:
    """End the holds of a name.

    Holds are taken by `p2pcache pull --hold NAME`. Those of models in your namespaces end; exit 3
    if there is none.

    Examples:
      p2pcache release my-service
    """
    answer = need_agent(loaded).end_holds(name)
    if as_json:
        emit_document(answer)
        return
    for row in answer["released"]:
        emit(f"released {clean(row['ref'])} from {clean(row['name'])}")

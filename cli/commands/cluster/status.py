"""`status`: show the agent, its tracker, origin and cache."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.describe import status_lines
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import emit, emit_document


@click.command(cls=Command)
@json_option
@client_options()
def status(as_json: bool, loaded: Loaded) -> None:
    """Show the agent, its tracker, origin and cache.

    Says first whether the agent is ready, and if not, why not.

    Examples:
      p2pcache status
      p2pcache status --json | jq .cache
    """
    client = need_agent(loaded)
    state = client.status()
    if as_json:
        emit_document(state)
        return
    for label, text in status_lines(state, client.address):
        emit(f"{label:10}{text}")
    pulls = state.get("pulls", ())
    emit(f"{'pulls:':10}{len(pulls)} running{'; see p2pcache ps' if pulls else ''}")

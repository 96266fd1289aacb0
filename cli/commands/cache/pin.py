"""`pin`: keep a model from being evicted."""

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import parse_lasting
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option("--name", required=True, metavar="NAME", help="The reason, for whoever asks later.")
@click.option("--for", "lasts", metavar="DURATION", help="It ends after this [default: never].")
@json_option
@client_options()
def pin(ref: str, name: str, lasts: str | None, as_json: bool, loaded: Loaded) -> None:
    """Keep a model from being evicted, for a named reason.

    A tag is pinned as a name: whatever it means on this node stays, also when it moves to another
    version. REF@blake3:HEX pins these bytes. Again with the same name renews the pin. `rm` and
    `prune` leave a pinned model alone, too (`rm`: exit 10). For operators.

    Examples:
      p2pcache pin team/llama:prod --name prod
      p2pcache pin team/llama:v3 --name demo --for 30d
    """
    wanted = Ref.parse(ref)
    for_s = parse_lasting(lasts) if lasts is not None else 0.0
    made = need_agent(loaded).pin(str(wanted), name, for_s)
    if as_json:
        emit_document(made)
        return
    emit(f"pinned {clean(made['ref'])} by {name}" + (f" for {lasts}" if for_s else ""))

"""`rm`: remove tags, and a model with its last tag."""

from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.options import Command, agreed, json_option, on_terminal, yes_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes
from p2pcache.ids import as_written


@click.command(cls=Command)
@click.argument("refs", type=REF, metavar="REF...", nargs=-1, required=True)
@yes_option
@json_option
@client_options("cache_dir")
def rm(refs: tuple[str, ...], yes: bool, as_json: bool, loaded: Loaded) -> None:
    """Remove a model's tag here, and the model with its last tag.

    By digest the model goes with all its tags here: the digest says which one, and no name is
    compared.
    Only this cache changes: the storage and other nodes keep the model. Chunks that other
    models share stay. A model that a pull, a load or a push uses, or that a process has open or
    mapped, is refused (exit 10). On a terminal that is asked first; a script has named what it
    means.

    Examples:
      p2pcache rm team/llama:v2
      p2pcache rm llama@blake3:4f1d...
    """
    wanted = [as_written(ref) for ref in refs]
    if not (yes or as_json) and on_terminal():
        named = ", ".join(wanted)
        if not agreed(f"Remove {named} from this cache?"):
            return
    with cache_or_agent(loaded) as cache:
        removed: list[dict[str, Any]] = []
        try:
            for ref in wanted:
                removed.append(cache.remove(ref))
                if not as_json:
                    freed = format_bytes(removed[-1].get("bytes_freed", 0))
                    emit(f"removed {ref} ({freed} freed)")
                    if unsure := removed[-1].get("unsure"):
                        note(f"note: {clean(unsure)}: whether they have it open isn't known")
        finally:  # print the removed ones also when an error ends the command
            if as_json and removed:
                emit_document({"removed": removed})

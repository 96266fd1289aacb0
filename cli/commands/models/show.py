"""`show`: one model's digest, tags, size and files."""

import click

from p2pcache.cli.rows.tables import table
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.describe import model_state
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes
from p2pcache.errors import NotFound
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--signature", is_flag=True, help="Print the stored signatures instead, one a line, unproved."
)
@json_option
@client_options("origin", "cache_dir")
def show(ref: str, signature: bool, as_json: bool, loaded: Loaded) -> None:
    """Show a model's files, sizes and digest.

    Works for models that are in the cache, and for those that the tracker or the storage knows.

    Examples:
      p2pcache show team/llama:v3
      p2pcache show llama --json | jq -r .digest
      p2pcache show llama --signature > llama.sig
    """
    wanted = Ref.parse(ref)
    if signature:
        with cache_or_agent(loaded) as cache:
            found = cache.signatures(str(wanted))
        if as_json:
            emit_document(found)
            return
        if not found["signatures"]:
            raise NotFound(f"{wanted} has no signature")
        for bundle in found["signatures"]:
            emit(str(bundle))
        return
    with cache_or_agent(loaded) as cache:
        model = cache.model(str(wanted))
    # A model may have several names: show the one that the user typed.
    model |= {"ref": str(wanted), "namespace": wanted.namespace, "name": wanted.name}
    if as_json:
        emit_document(model)
        return
    files = model["manifest"]["files"]
    for label, value in (
        ("ref", f"{model.get('spelled') or wanted.full_name}:{wanted.tag}"),
        ("digest", f"blake3:{model['digest']}"),
        ("tags", ", ".join(model.get("refs") or model["tags"]) or "-"),
        ("generation", model.get("generation", "-")),
        ("size", f"{format_bytes(model['bytes'])} in {counted(len(files), 'file')}"),
        ("here", model_state(model) if model.get("local") else "no"),
    ):
        emit(f"{label + ':':12}{clean(value)}")
    emit("")
    table(
        ("FILE", "SIZE", "CHUNKS"),
        [(f["path"], format_bytes(f["size"]), f["chunks"]) for f in files],
        right=(1, 2),
        cut=("FILE",),
    )

"""`ls`: list the models in the cache."""

import time
from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.describe import model_state
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, table
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.ids import DEFAULT_NAMESPACE, Ref

SHORT_DIGEST = 12  # hex digits, as docker shows: enough to tell models apart on a screen


@click.command(cls=Command)
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Refs alone, one a line.")
@client_options("cache_dir")
def ls(as_json: bool, quiet: bool, loaded: Loaded) -> None:
    """List the models in the cache.

    STATE is "complete", or how much of the model is here (an interrupted pull
    has the name that was asked for; pulling it again resumes). --json gives everything, with whole
    digests.

    Examples:
      p2pcache ls
      p2pcache ls --json | jq -r '.models[] | select(.complete) | .ref'
    """
    with cache_or_agent(loaded) as cache:
        models = cache.models()
    if as_json:
        emit_document({"models": models})
        return
    if quiet:
        for ref in (ref for model in models for ref in model.get("refs") or [model["ref"]]):
            if not ref.startswith("@"):  # a model without a name: no command takes this as a ref
                emit(clean(ref))
        return
    rows = [
        (
            name,
            tag,
            m["digest"][:SHORT_DIGEST],
            format_bytes(m["bytes"]),
            model_state(m),
            _ago(m["last_used"]),
        )
        for m in models
        for name, tag in _names(m)
    ]
    table(("NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"), rows, right=(3,))


def _names(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, tag) of each ref that names the model; ("-", "-") if none does."""
    refs = [Ref.parse(ref) for ref in model.get("refs", ())]
    if refs:
        return [(ref.short.rpartition(":")[0], ref.tag) for ref in refs]
    space, name = model["namespace"], model["name"]
    full = name if space in ("", DEFAULT_NAMESPACE) else f"{space}/{name}"
    return [(full, tag) for tag in model["tags"]] or [("-", "-")]


def _ago(unix_s: float) -> str:
    if not unix_s:
        return "-"
    passed = time.time() - unix_s
    return f"{format_duration(max(0.0, passed))} ago"

"""`ls`, `show`, `rm`, `prune`, `ps`: what is here, and what goes.

Each works through the agent, or straight on the cache directory where there is none.
"""

import sys
import time
from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, table
from p2pcache.cli.support.progress import peer_share
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.ids import DEFAULT_NAMESPACE, Ref

SHORT_DIGEST = 12  # as docker and git: enough to tell models apart on a screen


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
            if not ref.startswith("@"):  # nameless: no ref that another command would take
                emit(clean(ref))
        return
    rows = [
        (
            name,
            tag,
            m["digest"][:SHORT_DIGEST],
            format_bytes(m["bytes"]),
            _state(m),
            _ago(m["last_used"]),
        )
        for m in models
        for name, tag in _names(m)
    ]
    table(("NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"), rows, right=(3,))


@click.command(cls=Command)
@click.argument("ref", type=REF)
@json_option
@client_options("origin", "cache_dir")
def show(ref: str, as_json: bool, loaded: Loaded) -> None:
    """Show a model's files, sizes and digest.

    Works for models that are in the cache, and for those that the tracker or the storage knows.

    Examples:
      p2pcache show team/llama:v3
      p2pcache show llama --json | jq -r .digest
    """
    wanted = Ref.parse(ref)
    with cache_or_agent(loaded) as cache:
        model = cache.model(str(wanted))
    # A model may have many names; this is the one that was asked for.
    model |= {"ref": str(wanted), "namespace": wanted.namespace, "name": wanted.name}
    if as_json:
        emit_document(model)
        return
    files = model["manifest"]["files"]
    for label, value in (
        ("ref", model["ref"]),
        ("digest", f"blake3:{model['digest']}"),
        ("tags", ", ".join(model.get("refs") or model["tags"]) or "-"),
        ("generation", model.get("generation", "-")),
        ("size", f"{format_bytes(model['bytes'])} in {counted(len(files), 'file')}"),
        ("here", _state(model) if model.get("local") else "no"),
    ):
        emit(f"{label + ':':12}{clean(value)}")
    emit("")
    table(
        ("FILE", "SIZE", "CHUNKS"),
        [(f["path"], format_bytes(f["size"]), f["chunks"]) for f in files],
        right=(1, 2),
    )


@click.command(cls=Command)
@click.argument("refs", type=REF, metavar="REF...", nargs=-1, required=True)
@json_option
@client_options("cache_dir")
def rm(refs: tuple[str, ...], as_json: bool, loaded: Loaded) -> None:
    """Remove a model's tag here, and the model with its last tag.

    Only this cache changes: the storage and other nodes keep the model. What other models share
    stays. A model that is being pulled is refused (exit 10).

    Examples:
      p2pcache rm team/llama:v2
      p2pcache rm llama@blake3:4f1d...
    """
    wanted = [Ref.parse(ref) for ref in refs]
    with cache_or_agent(loaded) as cache:
        removed: list[dict[str, Any]] = []
        try:
            for ref in wanted:
                removed.append(cache.remove(str(ref)))
                if not as_json:
                    freed = format_bytes(removed[-1].get("bytes_freed", 0))
                    emit(f"removed {ref} ({freed} freed)")
        finally:  # an error ends it; what is gone by then is said all the same
            if as_json and removed:
                emit_document({"removed": removed})


@click.command(cls=Command)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also tagged models that nothing uses now."
)
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
@client_options("cache_dir")
def prune(dry_run: bool, everything: bool, yes: bool, as_json: bool, loaded: Loaded) -> None:
    """Free the space of what nothing names any more.

    Removes models without a tag, bytes without a model, and what old interrupted pulls left.
    With --all also every tagged model that is not in use; on a terminal that is asked first.
    What is in use is never touched.

    Examples:
      p2pcache prune --dry-run
      p2pcache prune --all --yes
    """
    with cache_or_agent(loaded) as cache:
        if everything and not (dry_run or yes or as_json) and _on_terminal():
            plan = cache.prune(dry_run=True, everything=True)
            _print_pruned(plan, "would remove")
            if not plan["removed"] or not click.confirm("Remove all of this?", err=True):
                return
        result = cache.prune(dry_run=dry_run, everything=everything)
    if as_json:
        emit_document(result)
    else:
        _print_pruned(result, "would remove" if dry_run else "removed")


@click.command(cls=Command)
@json_option
@client_options()
def ps(as_json: bool, loaded: Loaded) -> None:
    """Show the pulls that run now.

    Examples:
      p2pcache ps
      watch p2pcache ps
    """
    pulls = need_agent(loaded).pulls()
    if as_json:
        emit_document({"pulls": pulls})
        return
    rows = [
        (
            p["ref"], p.get("kind", "pull"), f"{p['bytes_done'] / max(1, p['bytes_total']):.0%}",
            format_bytes(p["bytes_total"]),
            f"{format_bytes(p['rate'])}/s", format_duration(p["eta_s"]) if p.get("eta_s") is not None else "-",
            p.get("peers", "-"), peer_share({**p, "peers": None}) or "-",
        )
        for p in pulls
    ]  # fmt: skip
    heads = ("REF", "KIND", "DONE", "SIZE", "RATE", "ETA", "PEERS", "SHARE")
    table(heads, rows, right=(2, 3, 4, 5, 6))


def _print_pruned(result: dict[str, Any], verb: str) -> None:
    for item in result["removed"]:
        emit(f"{verb} {clean(item)}")
    emit(
        f"{format_bytes(result['bytes_freed'])} {'would be ' if verb.startswith('would') else ''}freed"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _names(model: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, tag) of every ref that names the model; ("-", "-") if none does."""
    refs = [Ref.parse(ref) for ref in model.get("refs", ())]
    if refs:
        return [(ref.short.rpartition(":")[0], ref.tag) for ref in refs]
    space, name = model["namespace"], model["name"]
    full = name if space in ("", DEFAULT_NAMESPACE) else f"{space}/{name}"
    return [(full, tag) for tag in model["tags"]] or [("-", "-")]


def _state(model: dict[str, Any]) -> str:
    if model["complete"]:
        return "complete"
    return f"{model['bytes_done'] / max(1, model['bytes']):.0%}, incomplete"


def _ago(unix_s: float) -> str:
    if not unix_s:
        return "-"
    passed = time.time() - unix_s
    return f"{format_duration(max(0.0, passed))} ago"

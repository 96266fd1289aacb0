"""`prune`: remove models that nothing names."""

import sys
from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.core.units import format_bytes


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


def _print_pruned(result: dict[str, Any], verb: str) -> None:
    for item in result["removed"]:
        emit(f"{verb} {clean(item)}")
    emit(
        f"{format_bytes(result['bytes_freed'])} {'would be ' if verb.startswith('would') else ''}freed"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()

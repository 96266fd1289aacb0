"""`prune`: remove models that nothing names."""

from typing import Any

import click

from p2pcache.cli.commands.cache.evict import print_evicted
from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.options import Command, agreed, json_option, on_terminal, yes_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.core.units import format_bytes, parse_size
from p2pcache.errors import UsageError


@click.command(cls=Command)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also tagged models that nothing uses now."
)
@click.option(
    "--to", metavar="SIZE", help="Then evict the least valuable models until the cache has this."
)
@yes_option
@json_option
@client_options("cache_dir")
def prune(
    dry_run: bool, everything: bool, to: str | None, yes: bool, as_json: bool, loaded: Loaded
) -> None:
    """Free the space of what nothing names any more.

    Removes models without a tag, bytes without a model, and what interrupted pulls and imports
    left. With --all also every tagged model that is not in use: that is asked first, and needs
    --yes where there is no terminal. A model that a pull, a load or a push uses is never touched,
    nor is one of which any process has a file open or mapped: it is said, with the process. So is
    what can't be seen.
    With --to the least valuable models are evicted then, as `p2pcache evict` does.

    Examples:
      p2pcache prune --to 500GB
      p2pcache prune --dry-run
      p2pcache prune --all --yes
    """
    if everything and to is not None:
        raise UsageError("--all removes everything, --to keeps the most valuable: give one of them")
    to_bytes = parse_size(to) if to is not None else None
    with cache_or_agent(loaded) as cache:
        if everything and not (dry_run or yes):
            if as_json or not on_terminal():
                raise UsageError(
                    "prune --all removes tagged models, too, and nobody is asked here: give --yes"
                )
            plan = cache.prune(dry_run=True, everything=True)
            _print_pruned(plan, "would remove")
            if not plan["removed"] or not agreed("Remove all of this?"):
                return
        result = cache.prune(dry_run=dry_run, everything=everything)
        evicted = cache.evict(to_bytes=to_bytes, dry_run=dry_run) if to_bytes is not None else None
    if as_json:
        emit_document(result if evicted is None else {**result, "evicted": evicted})
        return
    _print_pruned(result, "would remove" if dry_run else "removed", summed=evicted is None)
    if evicted is not None:
        print_evicted({**evicted, "bytes_freed": evicted["bytes_freed"] + result["bytes_freed"]})


def _print_pruned(result: dict[str, Any], verb: str, *, summed: bool = True) -> None:
    for item in result["removed"]:
        emit(f"{verb} {clean(item)}")
    for item in result.get("kept", ()):
        emit(f"kept {clean(item)}")
    if result.get("unsure"):
        note(f"note: {clean(result['unsure'])}: what they have open isn't known")
    if summed:
        would = "would be " if verb.startswith("would") else ""
        emit(f"{format_bytes(result['bytes_freed'])} {would}freed")

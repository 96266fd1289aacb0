"""`evict`: give a model's disk space back."""

from typing import Any

import click

from p2pcache.cli.standalone.local_cache import cache_or_agent
from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.options import Command, agreed, json_option, on_terminal, yes_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes
from p2pcache.ids import Ref


@click.command(cls=Command)
@click.argument("refs", type=REF, metavar="[REF]...", nargs=-1)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would go, and why.")
@yes_option
@json_option
@client_options("cache_dir")
def evict(refs: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, loaded: Loaded) -> None:
    """Give a model's disk space back; it stays listed, and comes back on demand.

    Without REF the least valuable models go until the cache is at its low mark (cache_quota,
    cache_low), as they would by themselves above the high one. A model is worth more the oftener
    and later it was used, and the dearer its bytes are to fetch again. A model that is pulled,
    pushed, loaded, held or pinned stays (by name: exit 10), and so does one that a process has open.

    Examples:
      p2pcache evict team/llama:v1
      p2pcache evict --dry-run
    """
    wanted = [str(Ref.parse(ref)) for ref in refs]
    with cache_or_agent(loaded) as cache:
        if not (wanted or dry_run or yes or as_json) and on_terminal():
            plan = cache.evict(dry_run=True)
            print_evicted(plan)
            if not plan["evicted"] or not agreed("Evict all of this?"):
                return
        done: list[dict[str, Any]] = []
        try:
            for ref in wanted or [""]:
                done.append(cache.evict(ref, dry_run=dry_run))
                if not as_json:
                    print_evicted(done[-1])
        finally:  # print what went also when an error ends the command
            if as_json and done:
                emit_document(merged(done))


def merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several answers as one."""
    first = answers[0]
    return first | {
        "evicted": [row for answer in answers for row in answer["evicted"]],
        "kept": [row for answer in answers for row in answer["kept"]],
        "unsure": next((a["unsure"] for a in answers if a["unsure"]), ""),
        "bytes_freed": sum(answer["bytes_freed"] for answer in answers),
    }


def print_evicted(answer: dict[str, Any]) -> None:
    """Print what went or would go, and why; and what stays, and why."""
    would = "would " if answer["dry_run"] else ""
    verb = "would evict" if would else "evicted"
    for row in answer["evicted"]:
        left = row.get("bytes_left", 0)
        size = format_bytes(row["bytes"]) + (f", and leave {format_bytes(left)}" if left else "")
        emit(f"{verb} {clean(row['ref'])} ({size}): {clean(row['why'])}")
    for row in answer["kept"]:
        emit(f"kept {clean(row['ref'])}: {clean(row['why'])}")
    if answer["unsure"]:
        note(f"note: {clean(answer['unsure'])}: what they have open isn't known")
    emit(f"{format_bytes(answer['bytes_freed'])} {would and 'would be '}freed")

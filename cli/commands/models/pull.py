"""`pull`: fetch a model and print its directory."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from p2pcache.cli.support.client_options import Loaded, PullOptions, client_options
from p2pcache.cli.support.connect import find_agent, need_agent
from p2pcache.cli.support.interrupted import saying_what_goes_on
from p2pcache.cli.support.options import DIR, Command, json_option, quiet_option
from p2pcache.cli.support.output import emit, note
from p2pcache.cli.support.progress import Event, Reporter, follow, make_reporter, peer_share
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import format_bytes, format_duration, parse_lasting
from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import Ref, as_written, parse_wanted, ref_of_hub, spelled
from p2pcache.io.http.client import Events

if TYPE_CHECKING:
    from p2pcache.cli.standalone.embedded import Linger

_LINK_WARNING = (
    "warning: --link {mode} shares the cache's own files: whoever can write through the links (root can) "
    "changes the cache and every model that shares them"
)


@click.command(cls=Command)
@click.argument("ref", type=REF)
@click.option(
    "--to", metavar="DIR", type=DIR, help="Also put the files into DIR: complete, or not at all."
)
@click.option(
    "--link",
    type=click.Choice(["hard", "symlink"]),
    help="With --to: link into the cache instead of copying.",
)
@click.option(
    "--layout",
    type=click.Choice(["hf-cache"]),
    help="With --to: DIR is a Hugging Face hub's cache (HF_HUB_CACHE), whose clients find the model by its name.",
)
@click.option(
    "--force-generation", is_flag=True, help="Accept a tag that went back to an older state."
)
@click.option("--include", metavar="GLOB", multiple=True, help="Only files that match; repeatable.")
@click.option("--exclude", metavar="GLOB", multiple=True, help="Not these files; repeatable.")
@click.option(
    "--tensors",
    metavar="GLOB",
    multiple=True,
    help="Only bring the chunks of these tensors into the cache; prints no path.",
)
@click.option("--background", is_flag=True, help="Let pulls that somebody waits for go first.")
@click.option(
    "--hold", metavar="NAME", default="", help="Nobody evicts it until the hold of this name ends."
)
@click.option(
    "--for", "hold_for", metavar="DURATION", help="The hold ends after this [default: 1d]."
)
@click.option(
    "--hold-pid", metavar="PID", type=click.IntRange(min=1), help="It ends with this process, too."
)
@json_option
@quiet_option
@client_options("origin", "tracker", "cache_dir", "linger_s")
def pull(
    ref: str, to: str | None, link: str | None, layout: str | None, force_generation: bool, include: tuple[str, ...],
    exclude: tuple[str, ...], tensors: tuple[str, ...], background: bool, hold: str, hold_for: str | None,
    hold_pid: int | None, as_json: bool, quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Fetch a model and print its directory.

    The directory is complete, read-only and never changes; it is all that goes to stdout. Bytes
    come from other nodes where they have them, from storage otherwise, and each one is proved.
    An interrupted pull resumes when it is run again. Progress goes to stderr; --json gives one
    event per line on stdout instead, the last one "done" or "error".

    With --include and --exclude only the files that match come, into a directory of their own
    that holds nothing else. --tensors only warms the cache of a running agent: headers, index
    and the chunks of the tensors that match, for a loader that will ask for them.

    hf://ORG/REPO[@REVISION] is ORG/REPO:REVISION (main). If nobody has it, and the settings name a
    hub for that (on_miss), one node of the cluster imports it, and all get it from that node.

    --hold keeps the model from being evicted: pulling again renews the hold, `p2pcache release NAME`
    ends it, and so does its time.

    With no agent on this machine the command runs one itself, in its own cache, from --origin
    (P2PCACHE_ORIGIN), or as a member of --tracker's swarm.

    Examples:
      p2pcache pull team/llama:v3
      vllm serve "$(p2pcache pull team/llama:v3)"
      p2pcache pull llama@blake3:4f1d... --to /models/llama
      p2pcache pull Org/Llama --layout hf-cache --to ~/.cache/huggingface/hub
      p2pcache pull hf://Qwen/Qwen3-8B
      p2pcache pull llama --origin s3://models --timeout 10m
      p2pcache pull llama --hold my-service --for 7d
      p2pcache pull llama --include '*.json' --include 'tokenizer*'
      p2pcache pull llama --tensors 'model.layers.[0-7].*'
    """
    if to is not None and not to.strip():
        raise click.UsageError("--to is empty; give it a directory")
    if link and not to:
        raise click.UsageError("--link says how --to puts the files there; give --to DIR")
    if layout and (not to or include or exclude):
        raise click.UsageError(
            "--layout puts a whole model into --to DIR, without --include and --exclude"
        )
    if not hold and (hold_for is not None or hold_pid):
        raise click.UsageError("--for and --hold-pid say how long --hold lasts; give --hold NAME")
    if hold and tensors:
        raise click.UsageError("--hold holds a whole model; --tensors brings a part")
    wanted, url = parse_wanted(ref)
    if tensors:
        if to or include or exclude or force_generation:
            raise click.UsageError(
                "--tensors goes with none of --to, --include, --exclude, --force-generation"
            )
        _pull_tensors(loaded, wanted, tensors, as_json=as_json, quiet=quiet)
        return
    hold_s = parse_lasting(hold_for) if hold_for is not None else 0.0
    options = PullOptions(
        force_generation, include, exclude, background, hold, hold_s, hold_pid or 0, url
    )
    called = as_written(ref_of_hub(url) or ref)
    reporter = make_reporter(f"pulling {called}", as_json=as_json, quiet=quiet)
    with brought(loaded, wanted, options, reporter, quiet=quiet) as (done, tree, linger):
        name = spelled(ref) if layout else ""
        path = _materialise(tree, Path(to), link, name, done, wanted, quiet=quiet) if to else tree
        done["path"] = str(path)
        reporter.done(done, summary(called, done))
        if not as_json:
            emit(str(path))
        if not to and not quiet and not path.is_dir():
            note(
                f"note: {path} isn't visible here; set P2PCACHE_MODELS_DIR to where the agent's models are mounted"
            )
        if linger and int(done.get("bytes_origin", 0)) + int(done.get("bytes_peers", 0)):
            linger(str(done["digest"]))  # a pull that fetched nothing has nothing new to hand on


class Brought(NamedTuple):
    """A pull that is done."""

    event: Event  # its last one
    tree: Path  # the directory, as this process sees it
    linger: "Linger | None"  # serves the swarm before this process ends; None: an agent does it, which stays


@contextmanager
def brought(
    loaded: Loaded, wanted: Ref, options: PullOptions, reporter: Reporter, *, quiet: bool
) -> Iterator[Brought]:
    """Pull a model; an agent of our own, where there is no other, lives as long as the block.

    Args:
        loaded: the client's settings.
        wanted: the model.
        options: of the pull.
        reporter: shows the events but for the last.
        quiet: print no notes.

    Raises:
        P2PCacheError: the pull's own error.
    """
    with pull_events(loaded, wanted, options, quiet=quiet) as (events, linger):
        resolved: Event = {}
        with saying_what_goes_on(lambda: _what_goes_on(wanted, resolved, agent=linger is None)):
            done = follow(_remembering(events, resolved), reporter)
        yield Brought(done, directory_of(loaded, done), linger)


@contextmanager
def pull_events(
    loaded: Loaded, ref: Ref, options: PullOptions, *, quiet: bool
) -> "Iterator[tuple[Events, Linger | None]]":
    """Yield the events of a pull, and a call that serves the swarm before this process ends.

    None: an agent does it, which stays.
    """
    client = find_agent(loaded)
    if client is not None:
        yield client.pull(str(ref), **options._asdict()), None
        return
    from p2pcache.cli.standalone.embedded import pull_alone

    with pull_alone(loaded, ref, options, quiet=quiet) as alone:
        yield alone


def _remembering(events: Events, resolved: Event) -> Events:
    """Pass the events on, and keep the fields of `resolved`."""
    with closing(events):
        for event in events:
            if event["event"] == "resolved":
                resolved.update(event)
            yield event


def _what_goes_on(ref: Ref, resolved: Event, *, agent: bool) -> str:
    """Say what becomes of a pull whose command is interrupted."""
    if not agent:
        return "what came stays in the cache; run the command again to resume"
    if not resolved:
        return "nothing was begun"
    after = float(resolved.get("abandon_after_s", 30.0))
    return (
        f"the agent goes on for {format_duration(after)}, or as long as somebody else waits; to end it now: "
        f"p2pcache cancel {ref}; to resume: p2pcache pull {ref}"
    )


def _pull_tensors(
    loaded: Loaded, ref: Ref, tensors: tuple[str, ...], *, as_json: bool, quiet: bool
) -> None:
    """Bring the chunks of --tensors into the agent's cache."""
    client = need_agent(loaded)
    from p2pcache.loader.prefetch import prefetch_tensors

    base = loaded.settings.models_dir
    reporter = make_reporter(f"pulling tensors of {ref}", as_json=as_json, quiet=quiet)
    events = prefetch_tensors(client, ref, tensors, models_dir=Path(base) if base else None)
    done = follow(events, reporter)
    size = format_bytes(done["bytes"])
    reporter.done(done, (
        f"{ref}: {done['tensors']} of {done['tensors_total']} tensors, {size}, lie in the agent's cache with "
        "headers and index; for a directory pull the whole model, without --tensors"
    ))  # fmt: skip


def directory_of(loaded: Loaded, done: Event) -> Path:
    """Return the model's directory as this process sees it; the agent must not name one outside its models."""
    relative = PurePosixPath(str(done.get("path", "")))
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise P2PCacheError(f"the agent named a strange path: {str(relative)!r}")
    base = loaded.settings.models_dir or str(done.get("models_dir", ""))
    return Path(base) / relative


def _materialise(
    tree: Path, to: Path, link: str | None, name: str, done: Event, ref: Ref, *, quiet: bool
) -> Path:
    """Put the files into `to`; with a `name` into the hub's cache `to`, under this name."""
    from p2pcache.io.files.materialise import Mode, materialise

    if not tree.is_dir():
        raise NotFound(
            f"the model is complete, but its directory {tree} isn't visible here; "
            "set P2PCACHE_MODELS_DIR to where the agent's models directory is mounted"
        )
    target = Path(os.path.abspath(to))  # noqa: PTH100 - resolve() would follow links
    if link and not quiet:
        note(_LINK_WARNING.format(mode=link))
    mode = cast("Mode", link or "auto")  # click checked the choice
    if name:
        from p2pcache.io.hub_cache.copy import put_into_hub_cache

        tag = "" if ref.digest else ref.tag
        return put_into_hub_cache(tree, target, name, str(done["digest"]), tag, mode)
    materialise(tree, target, mode)
    return target


def summary(ref: str, done: Event) -> str:
    """Say in a line what a pull brought."""
    size, seconds = int(done.get("bytes", 0)), float(done.get("seconds", 0))
    moved = int(done.get("bytes_peers", 0)) + int(done.get("bytes_origin", 0))
    if not moved:
        return f"{ref}: already here, {format_bytes(size)}"
    rate = f" ({format_bytes(moved / seconds)}/s)" if seconds > 0 else ""
    share = peer_share({**done, "peers": None}) if done.get("bytes_peers") else "all from storage"
    return f"pulled {ref}: {format_bytes(moved)} in {format_duration(seconds)}{rate}, {share}"

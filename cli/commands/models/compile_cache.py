"""`compile-cache`: restore what an engine has compiled before its start, and save it afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.options import Command, WordsType, json_option, quiet_option
from p2pcache.cli.support.output import clean, emit_document, emit_json, note
from p2pcache.cli.support.ref_argument import REF
from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.errors import NotFound, P2PCacheError, TimedOut

_PAIR = "NAME=VALUE"


@click.group()
@click.pass_context
def compile_cache(ctx: click.Context) -> None:
    """Restore and save what an engine has compiled.

    A compile cache (of torch.compile, Triton, FlashInfer) is stored as NAMESPACE/NAME-cc:KEY, where KEY
    says what it is valid for: engine, torch, GPU, driver, model and so on. It holds programs, so it is
    taken only from namespaces that are named in compile_cache_namespaces, of the agent and of this client.
    """
    # --agent and --config in front of all commands hold for these commands, too.
    given = dict(ctx.default_map or {})
    ctx.default_map = dict.fromkeys(("key", "restore", "save"), given)


def _key_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options that make the key."""
    for option in (
        click.option("--namespace", default="", metavar="NS",
                     help="Where caches are kept [default: beside the model]."),
        click.option("--extra", "extras", multiple=True, metavar=_PAIR,
                     help="What else changes the code, e.g. tensor_parallel_size=2; repeatable."),
        click.option("--field", "fields", multiple=True, metavar=_PAIR,
                     help="A field of the key, instead of what is found here; repeatable."),
        click.option("--engine", required=True, metavar="NAME", type=WordsType(("vllm", "sglang", "torch")),
                     help="The package that compiles: vllm, sglang, torch."),
    ):  # fmt: skip
        function = option(function)
    return function


@compile_cache.command("key", cls=Command)
@click.argument("ref", type=REF)
@_key_options
@client_options("origin", "cache_dir")
def key(
    ref: str, engine: str, fields: tuple[str, ...], extras: tuple[str, ...], namespace: str,
    loaded: Loaded,
) -> None:  # fmt: skip
    """Print the key of this machine, engine and model, and the cache's name, as JSON.

    Examples:
      p2pcache compile-cache key team/llama:v3 --engine vllm
      p2pcache compile-cache key team/llama:v3 --engine vllm --extra tensor_parallel_size=2
    """
    from p2pcache.loader.compile_cache import find

    with _here(loaded) as here:
        found = find(
            ref, engine=engine, fields=_pairs(fields), extra=_pairs(extras), namespace=namespace, here=here
        )  # fmt: skip
    emit_document({"ref": found.ref.short, "key": msgspec.to_builtins(found.key)})


@compile_cache.command("restore", cls=Command)
@click.argument("ref", type=REF)
@click.option("--dir", "directory", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Where the engine looks for its cache; missing or empty.")  # fmt: skip
@_key_options
@click.option("--optional", is_flag=True,
              help="Exit 0, with a note, when there is none or it can't be had now.")  # fmt: skip
@json_option
@quiet_option
@client_options("origin", "cache_dir")
def restore(
    ref: str, directory: Path, engine: str, fields: tuple[str, ...], extras: tuple[str, ...],
    namespace: str, optional: bool, as_json: bool, quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Put the compile cache of a model into DIR, before the engine starts.

    REF is the model. DIR appears complete or not at all, with mode 0700; if it holds this very cache
    already, nothing happens, and nothing else is ever overwritten. Use the path that the cache was
    saved from: some engines write paths into it. Without a cache for this key the exit code is 3.

    Examples:
      p2pcache compile-cache restore team/llama:v3 --engine vllm --dir ~/.cache/vllm
      p2pcache compile-cache restore team/llama:v3 --engine vllm --dir /cache/vllm --optional --timeout 2m
    """
    restore_into(
        loaded, ref, directory, engine, fields=fields, extras=extras, namespace=namespace, optional=optional,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip


def restore_into(
    loaded: Loaded, ref: str, directory: Path, engine: str, *, fields: tuple[str, ...] = (),
    extras: tuple[str, ...] = (), namespace: str = "", optional: bool = True, as_json: bool = False,
    quiet: bool = False,
) -> None:  # fmt: skip
    """Restore a compile cache and say so; the arguments are those of the command.

    Raises:
        P2PCacheError: as `compile_cache.restore`; with `optional` only what isn't mended by compiling.
    """
    from p2pcache.loader import compile_cache as caches

    try:
        with _here(loaded) as here:
            done = caches.restore(
                ref, directory, engine=engine, fields=_pairs(fields), extra=_pairs(extras),
                namespace=namespace, here=here,
            )  # fmt: skip
    except P2PCacheError as error:
        if not optional or not (error.retryable or isinstance(error, NotFound | TimedOut)):
            raise
        if as_json:
            emit_json({"event": "done", "restored": False, "reason": clean(error)})
        elif not quiet:
            note(f"note: no compile cache, the engine will compile: {clean(error)}")
        return
    text = (
        f"restored {done.ref.short}" if done.done else f"{directory} holds {done.ref.short} already"
    )
    _report(done, text, "restored", as_json=as_json, quiet=quiet)


@compile_cache.command("save", cls=Command)
@click.argument("ref", type=REF)
@click.option("--dir", "directory", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="The engine's cache.")  # fmt: skip
@_key_options
@click.option("--replace", is_flag=True, help="Store it even if there is one for this key.")
@json_option
@quiet_option
@client_options("origin", "cache_dir")
def save(
    ref: str, directory: Path, engine: str, fields: tuple[str, ...], extras: tuple[str, ...],
    namespace: str, replace: bool, as_json: bool, quiet: bool, loaded: Loaded,
) -> None:  # fmt: skip
    """Store what the engine compiled in DIR, after its first start.

    REF is the model. Waits until nothing is written to DIR (a minute at most, then exit 9), and
    stores a copy of that moment. If there is a cache for this key already, nothing happens. Needs the
    right to push: the operators' socket, a token, or --origin.

    Examples:
      p2pcache compile-cache save team/llama:v3 --engine vllm --dir ~/.cache/vllm
      p2pcache compile-cache save team/llama:v3 --engine vllm --dir /cache/vllm --origin s3://models
    """
    from p2pcache.loader import compile_cache as caches

    with _here(loaded) as here:
        done = caches.save(
            ref, directory, engine=engine, fields=_pairs(fields), extra=_pairs(extras),
            namespace=namespace, replace=replace, here=here,
        )  # fmt: skip
    text = f"saved {done.ref.short}" if done.done else f"{done.ref.short} is stored already"
    _report(done, text, "saved", as_json=as_json, quiet=quiet)


@contextmanager
def _here(loaded: Loaded) -> Iterator[Any]:
    """Yield the agent, or one of our own while the block lasts, with the namespaces that we trust."""
    from p2pcache.loader.resolve import NodeAgent

    settings = loaded.settings
    client = find_agent(loaded)
    if client is not None:
        models = Path(settings.models_dir) if settings.models_dir else None
        yield NodeAgent(client, models, settings.origin, settings.compile_cache_namespaces)
        return
    from p2pcache.cli.standalone.embedded import agent_alone

    with agent_alone(loaded) as own:
        yield NodeAgent(own, None, settings.origin, settings.compile_cache_namespaces)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise click.UsageError(f"{text!r} isn't {_PAIR}")
        pairs[name] = value
    return pairs


def _report(done: Any, text: str, verb: str, *, as_json: bool, quiet: bool) -> None:
    """Print how a restore or a save ended; `verb` names the field that is true if it did anything."""
    if as_json:
        emit_json({
            "event": "done", "ref": done.ref.short, verb: done.done, "files": done.files,
            "bytes": done.size_bytes, "seconds": round(done.seconds, 3),
        })  # fmt: skip
    elif not quiet:
        size = (
            f": {counted(done.files, 'file')}, {format_bytes(done.size_bytes)}" if done.done else ""
        )
        note(f"{text}{size}, in {format_duration(done.seconds)}")

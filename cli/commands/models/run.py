"""`run`: start an engine whose model is a ref."""

import importlib.metadata
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from p2pcache.cli.commands.models.compile_cache import restore_into
from p2pcache.cli.commands.models.pull import brought, summary
from p2pcache.cli.support.client_options import Loaded, PullOptions, client_options
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.options import DIR, Command, quiet_option
from p2pcache.cli.support.output import end_notes, note
from p2pcache.cli.support.progress import make_reporter
from p2pcache.errors import NotFound, UsageError
from p2pcache.ids import Ref, is_ref
from p2pcache.loader.integrations import launch

NOT_FOUND, NOT_STARTED = 127, 126  # as shells and env(1) have them
# Python ignores these, and what is ignored stays so in the program that follows.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_HANDED_ON = (
    "agent",
    "token_file",
    "models_dir",
    "origin",
)  # settings that the loader reads from the environment


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument(
    "argv", metavar="-- COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@click.option(
    "--stream/--no-stream", "stream", default=None,
    help="Start the engine while the weights arrive [default: where its plugin is installed].",
)  # fmt: skip
@click.option("--compile-cache", "cache", type=DIR, metavar="DIR",
              help="Restore what the engine compiled for this model into DIR, and let it use DIR.")  # fmt: skip
@click.option("--extra", "extras", multiple=True, metavar="NAME=VALUE",
              help="With --compile-cache: what else changes the code; repeatable.")  # fmt: skip
@click.option("--namespace", default="", metavar="NS",
              help="With --compile-cache: where caches are kept [default: beside the model].")  # fmt: skip
@quiet_option
@client_options("origin", "tracker", "cache_dir")
def run(
    argv: tuple[str, ...], stream: bool | None, cache: str | None, extras: tuple[str, ...], namespace: str,
    quiet: bool, loaded: Loaded,
) -> int:  # fmt: skip
    """Start an engine whose model is a ref.

    The ref stands where the engine has its model: after `serve`, --model or --model-path. It comes to
    this node, its directory takes its place, and this process becomes the engine: it gets all
    signals, and its exit code is the one you see. With vLLM and SGLang the engine starts as soon as
    configuration and tokenizer are here, if p2pcache is installed in its environment; the weights
    come while it starts. Any argument may name further models as p2pcache://REF, such as a draft;
    they are brought whole.

    Before the engine starts, errors have the exit codes of `pull`; 127: there is no such command,
    126: it can't be started.

    Examples:
      p2pcache run -- vllm serve team/llama:v3 --port 8000
      p2pcache run --compile-cache /cache/vllm -- vllm serve team/llama:v3
      p2pcache run --no-stream -- python -m sglang.launch_server --model-path team/llama:v3
      p2pcache run -- ./my-engine p2pcache://team/llama:v3
    """
    from p2pcache.loader.integrations.weights import WEIGHTS

    program = shutil.which(argv[0])
    if program is None:
        return _not_started(argv)
    model = launch.find_model(argv, os.path.exists)
    others = launch.other_refs(argv, model)
    if model is None and not others:
        raise UsageError(
            "the command names no model: give a ref after 'serve', --model or --model-path, or "
            "p2pcache://REF anywhere"
        )
    engine = launch.engine_of(argv)
    if cache is not None and (model is None or not engine):
        raise UsageError(
            f"--compile-cache knows {' and '.join(launch.ENGINES)}; this command is neither"
        )
    environ = _environment(loaded)
    places = {text: _bring(loaded, Ref.parse(text), (), quiet=quiet)[0] for text in others}
    command = launch.replace_others(argv, places)
    if model is not None:
        wanted = Ref.parse(model.text)
        why = _why_whole(loaded, wanted, argv, program, stream=stream)
        if stream and why:
            raise UsageError(f"{wanted} can't be streamed: {why}; leave --stream out")
        if engine and why and stream is None and not quiet:
            note(f"p2pcache: {wanted} comes before {engine} starts: {why}")
        directory, digest = _bring(loaded, wanted, WEIGHTS if not why else (), quiet=quiet)
        command = launch.with_model(command, model, directory, stream=not why)
        environ |= {} if why else launch.streaming_environment(engine)
        if cache is not None:
            pinned = str(wanted._replace(digest=digest))
            restore_into(
                loaded, pinned, Path(cache), engine, extras=extras, namespace=namespace, quiet=quiet
            )
            for name, value in launch.cache_environment(engine, Path(cache).absolute()).items():
                environ.setdefault(name, value)
    return _become(program, command, environ)


def _not_started(argv: Sequence[str]) -> int:
    name = argv[0]
    if "/" in name and os.path.exists(name):  # noqa: PTH110 - as it was typed
        note(f"p2pcache: error: {name}: it can not be executed")
        return NOT_STARTED
    # For other programs' `run` a model is enough. A single word may as well be a misspelt program.
    alone = not argv[1:] and (":" in name or "/" in name) and is_ref(name)
    hint = f"; a model needs an engine: p2pcache run -- vllm serve {name}" if alone else ""
    note(f"p2pcache: error: {name}: no such command{hint}")
    return NOT_FOUND


def _environment(loaded: Loaded) -> dict[str, str]:
    """This environment, in which the loader finds the agent that was named here."""
    environ = dict(os.environ)
    for name in _HANDED_ON:
        value = getattr(loaded.settings, name)
        if value and loaded.sources[name] == "flag":
            environ[f"P2PCACHE_{name.upper()}"] = value
    return environ


def _why_whole(
    loaded: Loaded, wanted: Ref, argv: Sequence[str], program: str, *, stream: bool | None
) -> str:
    """Why the model must be here before the engine starts; "": its weights are streamed."""
    if stream is False:
        return "--no-stream"
    client = find_agent(loaded)
    if client is None:
        return "no agent runs here that would go on to fetch them"
    if stream is None and not _has_plugin(launch.engine_of(argv), program):
        return "p2pcache isn't installed beside the engine, as far as can be seen from here"
    files = client.model(str(wanted)).get("manifest", {}).get("files", [])
    return launch.may_stream(argv, [str(file["path"]) for file in files])


def _has_plugin(engine: str, program: str) -> bool:
    """Whether the engine runs in the environment of this process, where its plugin is."""
    try:
        importlib.metadata.version(engine or "no engine")
    except importlib.metadata.PackageNotFoundError:
        return False
    found = Path(program)  # perhaps a link, as in ~/.local/bin; so is Python itself
    return Path(sys.executable).parent.resolve() in (found.parent.resolve(), found.resolve().parent)


def _bring(loaded: Loaded, ref: Ref, exclude: Sequence[str], *, quiet: bool) -> tuple[Path, str]:
    """Pull a model, or all of it but some files; its directory and digest.

    Raises:
        NotFound: the directory isn't visible here.
        P2PCacheError: the pull's own error.
    """
    reporter = make_reporter(f"pulling {ref}", as_json=False, quiet=quiet)
    with brought(loaded, ref, PullOptions(exclude=tuple(exclude)), reporter, quiet=quiet) as pulled:
        pass
    if not pulled.tree.is_dir():
        raise NotFound(
            f"{pulled.tree} isn't visible here; set P2PCACHE_MODELS_DIR to where the agent's models are mounted"
        )
    reporter.done(pulled.event, summary(str(ref), pulled.event))
    return pulled.tree, str(pulled.event["digest"])


def _become(program: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command in this process' place; an exit code, if it can't be started."""
    end_notes()
    sys.stdout.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)  # of --timeout; a timer outlives this program
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(command), dict(environ))  # noqa: S606 - it is what was asked for
    except OSError as error:  # no interpreter, or a file of another kind
        note(f"p2pcache: error: {program}: {error.strerror}")
        return NOT_STARTED

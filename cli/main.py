"""The `p2pcache` command: the table of its commands, and how a command ends.

The tree is the help: a command word is a module of its name in the folder of its part, so `ls` is
`commands/models/ls.py`. To add a command:

1. Write `cli/commands/FOLDER/WORD.py` with a click command (or group) `WORD`; `-` in a word is `_` in Python,
   and a word of Python's own has `_` behind it.
   Its docstring is the help; the first line is repeated in the table below, and examples end it.
   - It talks to an agent: `support.client_options.client_options` and `support.connect.need_agent`.
   - It works on a cache without an agent, too: `standalone.local_cache.cache_or_agent`.
   - Its options are the settings of a daemon: `support.setting_options`.
2. Add the word to `COMMANDS`, a row to docs/cli.md, and `tests/cli/commands/FOLDER/test_WORD.py`.

`tests/cli/test_main.py` compares tree, table, help and documentation.

A module is imported when its command is used, so that help and a pull of a complete model stay quick.
Only this module turns errors and signals into exit codes.
"""

import errno
import gc
import importlib
import io
import itertools
import keyword
import os
import signal
import sys
import time
from types import FrameType

import click

from p2pcache import __version__
from p2pcache.cli.pid_one import ENDING, hear_signals
from p2pcache.cli.support.interrupted import Interrupted
from p2pcache.errors import P2PCacheError, UsageError

COMMANDS: dict[str, dict[str, str]] = {  # folder of commands/, word, line in the help
    "models": {
        "pull": "Fetch a model and print its directory.",
        "run": "Start an engine whose model is a ref.",
        "warm": "Fetch a model before anybody asks for it, here or on K nodes.",
        "cancel": "End a pull or a warm on this node, for all who wait for it.",
        "push": "Store a directory as a model.",
        "export": "Write a torrent of a model, for clients without p2pcache.",
        "import": "Take in a model from a bucket, a hub, a web server, a directory or a torrent.",
        "ls": "List the models in the cache.",
        "show": "Show a model's files, sizes and digest.",
        "verify": "Prove every byte of a model again.",
        "sign": "Sign a model, and store the signature beside its manifest.",
        "compile-cache": "Restore and save what an engine has compiled.",
    },
    "cache": {
        "rm": "Remove a model's tag here, and the model with its last tag.",
        "evict": "Give a model's disk space back; it stays listed, and comes back on demand.",
        "prune": "Free the space of what nothing names any more.",
        "pin": "Keep a model from being evicted, for a named reason.",
        "unpin": "End a model's pins.",
        "pins": "List pins and holds: why models stay here.",
        "release": "End the holds of a name.",
    },
    "cluster": {
        "ps": "Show the pulls that run now.",
        "df": "Say how full the cache is; with --cluster every node's, and the pool's sum.",
        "nodes": "List the cluster's nodes, or empty one.",
        "keep": "Keep copies of a model in the cluster, or show what is kept.",
        "locate": "List the nodes that have a model.",
        "status": "Show the agent, its tracker, origin and cache.",
        "stats": "Watch this node: rates, pulls, what ended lately.",
        "history": "List what ended: pulls, pushes, removals.",
        "explain": "Say what a pull waits for, or where its time went.",
        "bench": "Measure this node: disk, hash, loopback, storage.",
        "doctor": "Examine this node, with or without a running agent.",
    },
    "daemons": {
        "agent": "Run this node's agent in the foreground.",
        "tracker": "Run the cluster's tracker in the foreground.",
        "token": "Make and read tokens: what a client without a socket may do.",
        "ca": "Make certificates for a cluster in mTLS mode.",
    },
    "program": {
        "config": "Show or check the settings.",
        "completion": "Print a shell's completion script.",
        "version": "Print the version of this program.",
    },
}
# What people type who know docker, ollama, git, restic or the hub's client.
ELSEWHERE = {
    "download": "pull", "fetch": "pull", "get": "pull", "upload": "push", "list": "ls", "images": "ls",
    "delete": "rm", "remove": "rm", "rmi": "rm", "inspect": "show", "info": "show", "check": "verify",
    "gc": "prune", "forget": "rm", "stop": "cancel", "top": "stats", "logs": "history", "serve": "agent",
    "start": "agent", "daemon": "agent", "diagnose": "doctor", "settings": "config", "snapshots": "ls",
    "members": "nodes", "peers": "nodes", "health": "status", "clean": "prune", "du": "df",
}  # fmt: skip
# What they type as an option of `pull`.
OPTIONS_ELSEWHERE = {
    "--local-dir": "--to", "--output": "--to", "--dest": "--to", "--revision": "NAME:REVISION",
}  # fmt: skip
_TITLES = {
    "models": "Models",
    "cache": "What stays here",
    "cluster": "Cluster",
    "daemons": "Daemons",
    "program": "This program",
}

_EPILOG = """\b
Examples:
  p2pcache push ./llama team/llama:v3      store a directory as a model
  vllm serve "$(p2pcache pull team/llama:v3)"
  p2pcache run -- vllm serve team/llama:v3 start an engine, and let the weights come meanwhile
  p2pcache COMMAND --help                  each command explains itself

\b
A local agent is found by itself (/run/p2pcache/agent.sock); without one, commands work alone,
from P2PCACHE_ORIGIN. Exit codes: 0 done, 1 bug, 2 usage, 3 not found, 4 not allowed,
5 no space, 6 integrity, 7 origin unavailable, 8 agent or tracker unreachable, 9 timeout,
10 conflict, 130 interrupted, 143 terminated.
"""


ONE_WISH_S = 0.1  # two signals within it are one; nobody presses Ctrl-C twice so quickly
COLLECT_AFTER = 200_000  # new objects, some 40 MB; the start of a pull makes half as many


def module_of(word: str) -> str:
    """The name of a command's module and of the command in it."""
    name = word.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


class PipeBroke(Exception):
    """Stands for its cause: of an `OSError` click would leave an exit without a word."""


class Commands(click.Group):
    """The command table; imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all words, in the order of the help."""
        return [word for part in COMMANDS.values() for word in part]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None: there is no such word."""
        for folder, part in COMMANDS.items():
            if cmd_name in part:
                name = module_of(cmd_name)
                module = importlib.import_module(f"p2pcache.cli.commands.{folder}.{name}")
                command: click.Command = getattr(module, name)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Do as click does, and suggest a word of the table for a misspelt one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            word = ELSEWHERE.get(args[0]) or next(iter(close), "")
            if not word:
                raise
            guess = f"{error.message.rstrip('.')} (did you mean {word!r}?)"
            raise click.UsageError(guess, ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeBroke from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table by parts, without importing any command."""
        for folder, part in COMMANDS.items():
            with formatter.section(_TITLES[folder]):
                formatter.write_dl(list(part.items()))


@click.group(cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, "-V", "--version", prog_name="p2pcache", message="%(prog)s %(version)s"
)
@click.option("--agent", metavar="ADDRESS", help="As each command's --agent, said once in front.")
@click.option("--config", metavar="FILE", help="As each command's --config, said once in front.")
@click.pass_context
def cli(ctx: click.Context, agent: str | None, config: str | None) -> None:
    """Models from storage to every node, each chunk read from storage once."""
    given = {k: v for k, v in (("agent", agent), ("config", config)) if v is not None}
    ctx.default_map = {word: given for part in COMMANDS.values() for word in part}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments without the program's name; None: those of this process.
    """
    args = sys.argv[1:] if argv is None else argv
    _open_standard_streams()
    if argv is None:
        # Imports make hundreds of thousands of objects that stay. To look for garbage among them took a third of the
        # CPU time of a start. A daemon goes back to the usual rule (`p2pcache.io.event_loop.usual_rule`).
        gc.set_threshold(COLLECT_AFTER)
        _name_files_in_utf8()
    _write_utf8()
    if "_P2PCACHE_COMPLETE" in os.environ:  # registers our completion for bash
        importlib.import_module("p2pcache.cli.commands.program.completion")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        hear_signals()
        result = cli.main(args=args, prog_name="p2pcache", standalone_mode=False)
        sys.stdout.flush()
    except P2PCacheError as error:
        return _fail(args, error.exit_code, str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        from p2pcache.cli.support.output import emit

        emit(error.format_message())
        return 0
    except click.UsageError as error:
        return _fail(args, 2, _usage_message(error))
    except click.ClickException as error:
        return _fail(args, 2, error.format_message())
    except (BrokenPipeError, SystemExit, PipeBroke) as error:
        return _on_broken_pipe(args, error)
    except Interrupted as interruption:
        name = "interrupted" if interruption.number == signal.SIGINT else "terminated"
        goes_on = f"; {interruption.goes_on}" if interruption.goes_on else ""
        code = _fail(args, 128 + interruption.number, name + goes_on)
        # At Python's end the kernel would take the second signal of one wish, and its code and ours differ.
        time.sleep(ONE_WISH_S)
        return code
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _fail(args, *_unclassified(error))
    finally:
        _end_notes()
        if argv is None:
            gc.freeze()  # or Python looks through all objects once more before it ends: 0.3 s of CPU time after a pull
    return result if isinstance(result, int) else 0


def _on_broken_pipe(args: list[str], error: BaseException) -> int:
    from p2pcache.cli.support.output import abandon_stdout, reader_has_gone

    if not reader_has_gone():
        # So click ends when it has completed a word (0), or can't (1).
        if isinstance(error, SystemExit) and isinstance(error.code, int) and not error.__context__:
            return error.code
        return _fail(args, *_unclassified(error.__cause__ or error))
    abandon_stdout()
    return 0


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Unwind at the first signal; from then on a signal ends the process at once."""
    first = time.monotonic()

    def force(number: int, _frame: FrameType | None) -> None:
        # `timeout` signals the process and then its group: the same wish twice, and the message would be lost.
        if time.monotonic() - first > ONE_WISH_S:
            os._exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, force)
    raise Interrupted(number)


def _usage_message(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "p2pcache"
    said = error.format_message().rstrip(".").replace("a valid integer range", "a whole number")
    if isinstance(error, click.NoSuchOption) and command.endswith(" pull"):
        meant = OPTIONS_ELSEWHERE.get(error.option_name)
        said = f"{error.message.rstrip('.')} (did you mean {meant!r}?)" if meant else said
    return f"{said}; see '{command} --help'"


def _fail(args: list[str], code: int, message: str) -> int:
    from p2pcache.cli.support.output import clean, emit_json, note

    line = clean(" ".join(message.split()))  # it may quote what somebody else sent
    if asks_json(args):
        emit_json({"event": "error", "code": code, "message": line})
    note(f"p2pcache: error: {line}")
    return code


def asks_json(args: list[str]) -> bool:
    """Tell whether the command line asks for JSON: an error is told in it, too."""
    spelt = {"--json", "-ojson", "--output=json"}
    pairs = itertools.pairwise(args)
    return not spelt.isdisjoint(args) or any(
        first in ("-o", "--output") and second == "json" for first, second in pairs
    )


def _end_notes() -> None:
    from p2pcache.cli.support.output import end_notes

    end_notes()


def _unclassified(error: BaseException) -> tuple[int, str]:
    """Return exit code and message for an exception of nobody's; with P2PCACHE_DEBUG raise it."""
    if os.environ.get("P2PCACHE_DEBUG"):
        raise error
    from p2pcache.io.log import redact
    from p2pcache.io.process_limits import limit_reached

    if known := limit_reached(error) or _of_this_place(error):
        return known.exit_code, str(known)
    said = redact(str(error))  # it may be a library's, and quote what it was given
    return 1, f"this is a bug: {type(error).__name__}: {said}; P2PCACHE_DEBUG=1 shows where"


def _of_this_place(error: BaseException) -> P2PCacheError | None:
    """The error of our tree for a command that has nowhere to stand, or nowhere to write to."""
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()  # noqa: PTH109 - the call that failed
        except FileNotFoundError:
            return UsageError("the working directory was deleted; change to one that is there")
    # Errors of files have a name, or were translated. Click writes help and versions itself.
    if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
        from p2pcache.cli.support.output import abandon_stdout, stdout_error

        abandon_stdout()
        return stdout_error(error)
    return None


def _name_files_in_utf8() -> None:
    """Start again with names of files in UTF-8 where the locale has another encoding.

    There the same directory would get another digest, and a pulled file another name.
    """
    if sys.getfilesystemencoding() != "utf-8":
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # a PID 1 would lose them meanwhile
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def _write_utf8() -> None:
    """Write UTF-8 whatever the terminal, for what we print is read by programs; other bytes of names as they are."""
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _open_standard_streams() -> None:
    """Open /dev/null for closed streams (`>&-`), or the next file that is opened takes their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        if fd:
            setattr(sys, ("stdout", "stderr")[fd - 1], os.fdopen(fd, "w", closefd=False))
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())

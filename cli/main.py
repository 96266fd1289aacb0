"""The `p2pcache` command: which commands there are, and how a command ends.

Commands are imported when they are used, so that help and a warm pull stay quick. This is the
one place that turns errors and signals into exit codes.
"""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NamedTuple

import click

from p2pcache import __version__
from p2pcache.errors import P2PCacheError


class Entry(NamedTuple):
    """A command: where it lives and its line in the help."""

    module: str
    help: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Models": {
        "pull": Entry("commands.models.pull", "Fetch a model and print its directory."),
        "warm": Entry(
            "commands.models.warm", "Fetch a model before anybody asks for it, here or on K nodes."
        ),
        "push": Entry("commands.models.push", "Store a directory as a model."),
        "ls": Entry("commands.models.ls", "List the models in the cache."),
        "show": Entry("commands.models.ls", "Show a model's files, sizes and digest."),
        "verify": Entry("commands.models.pull", "Prove every byte of a model again."),
        "rm": Entry(
            "commands.models.ls",
            "Remove a model's tag here, and the model with its last tag.",
        ),
        "prune": Entry("commands.models.ls", "Free the space of what nothing names any more."),
        "compile-cache": Entry(
            "commands.models.compile_cache", "Restore and save what an engine has compiled."
        ),
    },
    "Cluster": {
        "ps": Entry("commands.models.ls", "Show the pulls that run now."),
        "nodes": Entry("commands.cluster.status", "List the cluster's nodes."),
        "locate": Entry("commands.cluster.status", "List the nodes that have a model."),
        "status": Entry(
            "commands.cluster.status", "Show the agent, its tracker, origin and cache."
        ),
        "stats": Entry(
            "commands.cluster.stats", "Watch this node: rates, pulls, what ended lately."
        ),
        "history": Entry("commands.cluster.history", "List what ended: pulls, pushes, removals."),
        "explain": Entry(
            "commands.cluster.explain", "Say what a pull waits for, or where its time went."
        ),
        "bench": Entry(
            "commands.cluster.bench", "Measure this node: disk, hash, loopback, storage."
        ),
        "doctor": Entry(
            "commands.cluster.doctor", "Examine this node, with or without a running agent."
        ),
    },
    "Daemons": {
        "agent": Entry("commands.daemons.agent", "Run this node's agent in the foreground."),
        "tracker": Entry("commands.daemons.agent", "Run the cluster's tracker in the foreground."),
        "token": Entry(
            "commands.daemons.token", "Make and read tokens: what a client without a socket may do."
        ),
        "ca": Entry("commands.daemons.ca", "Make certificates for a cluster in mTLS mode."),
    },
    "This program": {
        "config": Entry("commands.program.config", "Show or check the settings."),
        "completion": Entry("commands.program.completion", "Print a shell's completion script."),
        "version": Entry("commands.cluster.status", "Print the version of this program."),
    },
}

_EPILOG = """\b
Examples:
  p2pcache push ./llama team/llama:v3      store a directory as a model
  vllm serve "$(p2pcache pull team/llama:v3)"
  p2pcache COMMAND --help                  each command explains itself

\b
A local agent is found by itself (/run/p2pcache/agent.sock); without one, commands work alone,
from P2PCACHE_ORIGIN. Exit codes: 0 done, 1 bug, 2 usage, 3 not found, 4 not allowed,
5 no space, 6 integrity, 7 origin unavailable, 8 agent or tracker unreachable, 9 timeout,
10 conflict, 130 interrupted, 143 terminated.
"""


class Commands(click.Group):
    """The command table; imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [name for entries in COMMANDS.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        for entries in COMMANDS.values():
            if cmd_name in entries:
                module = importlib.import_module(f"p2pcache.cli.{entries[cmd_name].module}")
                command: click.Command = getattr(module, cmd_name.replace("-", "_"))
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a guess at what was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            guess = f"{error.message.rstrip('.')} (did you mean {close[0]!r}?)"
            raise click.UsageError(guess, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by task, without importing any of them."""
        for title, entries in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])


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
    ctx.default_map = {name: given for entries in COMMANDS.values() for name in entries}


class Interrupted(BaseException):
    """A signal asks us to end; not an Exception, so that nothing on the way mistakes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = sys.argv[1:] if argv is None else argv
    _open_standard_streams()
    if "_P2PCACHE_COMPLETE" in os.environ:  # a shell asks: it needs our kind of bash
        importlib.import_module("p2pcache.cli.commands.program.completion")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        result = cli.main(args=args, prog_name="p2pcache", standalone_mode=False)
        sys.stdout.flush()
    except P2PCacheError as error:
        return _fail(args, error.exit_code, str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except click.UsageError as error:
        return _fail(args, 2, _usage_message(error))
    except click.ClickException as error:
        return _fail(args, 2, error.format_message())
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except Interrupted as interruption:
        name = "interrupted" if interruption.number == signal.SIGINT else "terminated"
        return _fail(args, 128 + interruption.number, name)
    except Exception as error:
        if os.environ.get("P2PCACHE_DEBUG"):
            raise
        from p2pcache.io.log import redact

        said = redact(str(error))  # it may be a library's, and quote what it was given
        text = f"this is a bug: {type(error).__name__}: {said}; P2PCACHE_DEBUG=1 shows where"
        return _fail(args, 1, text)
    return result if isinstance(result, int) else 0


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """First signal: unwind. Second one: the user means it."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _force)
    raise Interrupted(number)


def _force(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _usage_message(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "p2pcache"
    return f"{error.format_message().rstrip('.')}; see '{command} --help'"


def _fail(args: list[str], code: int, message: str) -> int:
    from p2pcache.cli.support.output import clean, emit_json

    line = clean(" ".join(message.split()))  # it may quote what a stranger sent
    if "--json" in args:
        emit_json({"event": "error", "code": code, "message": line})
    print(f"p2pcache: error: {line}", file=sys.stderr)
    return code


def _open_standard_streams() -> None:
    """Give closed ones (`>&-`) /dev/null, or the next file that is opened would take their place."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        if fd:
            setattr(sys, ("stdout", "stderr")[fd - 1], os.fdopen(fd, "w", closefd=False))
    os.close(fd)


def _abandon_stdout() -> None:
    """Nobody reads any more: give the interpreter's last flush somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

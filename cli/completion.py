"""`completion`: scripts for bash, zsh and fish."""

import click
from click.shell_completion import get_completion_class

from p2pcache.cli.options import Command
from p2pcache.cli.output import emit

VARIABLE = "_P2PCACHE_COMPLETE"  # click answers the shell's questions when this is set


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    Examples:
      source <(p2pcache completion bash)
      p2pcache completion zsh > "${fpath[1]}/_p2pcache"
      p2pcache completion fish > ~/.config/fish/completions/p2pcache.fish
    """
    from p2pcache.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    emit(kind(cli, {}, "p2pcache", VARIABLE).source().rstrip())

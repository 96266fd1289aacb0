"""`completion`: print a shell's completion script, and answer the questions of these scripts."""

import os

import click
from click.shell_completion import (
    BashComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit

VARIABLE = "_P2PCACHE_COMPLETE"  # click answers the shell's questions when this is set

# click's own script uses bash's words. Bash ends a word at ":", so nothing in a ref behind it would be completed.
_BASH = r"""\
%(complete_func)s() {
    local type value response line="${COMP_LINE:0:COMP_POINT}" before=""
    local word="${line##*[[:space:]]}"
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && before="${word%%:*}:"
    response=$(env COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done <<< "$response"
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """click's completion for bash, from the whole line up to the cursor."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the word that is typed, and this word."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # the script of an older release
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


add_completion_class(Bash)


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    Commands, options, paths, and the refs of the agent's cache.

    Examples:
      source <(p2pcache completion bash)
      p2pcache completion zsh > "${fpath[1]}/_p2pcache"
      p2pcache completion fish > ~/.config/fish/completions/p2pcache.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    program = ctx.find_root().command
    emit(kind(program, {}, "p2pcache", VARIABLE).source().rstrip())

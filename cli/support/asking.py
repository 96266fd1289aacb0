"""Questions before something goes: asked on a terminal, and answered by --yes in scripts."""

import sys

import click

yes_option = click.option("-y", "--yes", is_flag=True, help="Don't ask.")


def on_terminal() -> bool:
    """Tell whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str) -> bool:
    """Ask; whether the answer is yes."""
    return click.confirm(question, err=True)

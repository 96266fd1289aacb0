"""The manual pages of every command, by click-man: `man_pages.py DIRECTORY`."""

import sys
from pathlib import Path

import click
from click_man.core import generate_man_page

from p2pcache import __version__
from p2pcache.cli.main import cli


def write_pages(folder: Path) -> list[Path]:
    """Write p2pcache.1, p2pcache-pull.1 and so on; return their paths.

    click-man's own walk sees only commands that are imported already; ours are imported when they are used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    top = click.Context(cli, info_name="p2pcache")
    written = []
    waiting: list[tuple[click.Context, click.Command]] = [(top, cli)]
    while waiting:
        context, command = waiting.pop()
        page = folder / f"{context.command_path.replace(' ', '-')}.1"
        page.write_text(generate_man_page(context, __version__))
        written.append(page)
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                below = command.get_command(context, word)
                if below is not None and not below.hidden:
                    waiting.append((click.Context(below, info_name=word, parent=context), below))
    return sorted(written)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

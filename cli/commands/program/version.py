"""`version`: print the version of this program."""

import click

from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import emit, emit_document
from p2pcache.io.release import this_release


@click.command(cls=Command)
@json_option
def version(as_json: bool) -> None:
    """Print the version of this program.

    With the commit that it was built from, the Python that runs it, and the formats that it speaks.

    Examples:
      p2pcache version
      p2pcache version --json | jq -r .commit
    """
    release = this_release()
    if as_json:
        emit_document(release._asdict())
        return
    emit(f"p2pcache {release.version}")
    for name in ("commit", "python", "uvloop", "blake3"):
        emit(f"{name + ':':10}{getattr(release, name)}")
    spoken = (f"{name} {_listed(value)}" for name, value in release.formats.items())
    emit(f"{'formats:':10}{', '.join(spoken)}")


def _listed(value: object) -> str:
    """Return the version of a format, or the versions that this program speaks."""
    return " and ".join(str(v) for v in value) if isinstance(value, list) else str(value)

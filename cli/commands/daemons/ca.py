"""`ca`: make certificates for a cluster in mTLS mode, as a small certificate authority."""

from pathlib import Path
from typing import cast

import click

from p2pcache.cli.support.options import Command
from p2pcache.cli.support.output import emit, note
from p2pcache.core.protocol.certificate_identity import ROLES, Role


@click.group()
def ca() -> None:
    """Make certificates for a cluster in mTLS mode."""


@ca.command("init", cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--name", default="cluster", metavar="NAME", help="Of the cluster [default: cluster]."
)
@click.option("--days", default=3650.0, metavar="DAYS", help="How long it is good [default: 3650].")
def init(directory: Path, name: str, days: float) -> None:
    """Make the CA of a cluster: its certificate (ca.pem) and its key (ca.key).

    Every member gets ca.pem. Keep ca.key away from nodes: whoever has it can be anybody.
    Prints the path of the certificate.

    Examples:
      p2pcache ca init ./ca --name prod
    """
    from p2pcache.io.security import ca as authority

    emit(str(authority.init(directory, cluster=name, days=days)))


@ca.command("issue", cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What its bearer may be.")
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST",
    help="A name or address that curl, Prometheus or a browser will use; may be repeated.",
)  # fmt: skip
@click.option("--days", default=365.0, metavar="DAYS", help="How long it is good [default: 365].")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Where to put the files [default: the CA's directory].")  # fmt: skip
def issue(
    directory: Path, name: str, role: str, hosts: tuple[str, ...], days: float, out: Path | None
) -> None:
    """Make the certificate (NAME.pem) and key (NAME.key) of one member.

    One certificate per node: its node ids are bound to NAME. A pusher is an agent that may also push
    where storage has no conditional writes, so that the tracker moves the tags. To renew one, issue it again into
    another directory and move the files over the old ones: the daemon notices within seconds.
    Prints the paths of the certificate and the key.

    Examples:
      p2pcache ca issue ./ca tracker --role tracker --host tracker.example.org
      p2pcache ca issue ./ca node-17 --role agent
      p2pcache ca issue ./ca node-17 --role agent --out ./renewed
    """
    from p2pcache.io.security import ca as authority

    made = authority.issue(
        directory, name, role=cast("Role", role), hosts=hosts, days=days, out=out
    )
    emit(f"{made.cert}\n{made.key}")
    note(f"note: {made.member}, good until {made.expires:%Y-%m-%d %H:%M} UTC")

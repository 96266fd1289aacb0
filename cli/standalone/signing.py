"""Options of commands that sign, and the key that they name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pcache.cli.support.options import FILE

if TYPE_CHECKING:
    from p2pcache.io.signatures.library import Signer


def certificate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --certificate and --chain to a command."""
    for option in (
        click.option(
            "--chain", metavar="FILE", type=FILE, multiple=True,
            help="Certificates between --certificate and the authority; repeatable.",
        ),
        click.option(
            "--certificate", metavar="FILE", type=FILE, help="The certificate of the key, in PEM."
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def signer_of(key: str, certificate: str | None, chain: tuple[str, ...]) -> "Signer":
    """Who signs.

    Raises:
        click.UsageError: a chain without a certificate.
    """
    from p2pcache.io.signatures.library import Signer

    if chain and not certificate:
        raise click.UsageError("--chain goes with --certificate")
    path = Path(certificate) if certificate else None
    return Signer(Path(key), path, tuple(Path(one) for one in chain))

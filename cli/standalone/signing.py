"""Options of commands that sign, and the key that they name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pcache.cli.support.client_options import Loaded
from p2pcache.cli.support.options import FILE, on_terminal

if TYPE_CHECKING:
    from p2pcache.io.signatures.keyless import Keyless
    from p2pcache.io.signatures.library import Signer

keyless_option = click.option(
    "--keyless", is_flag=True,
    help="Sign by a Sigstore, as whom an identity token or your browser names.",
)  # fmt: skip


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


def signer_of(
    key: str | None,
    certificate: str | None,
    chain: tuple[str, ...],
    *,
    keyless: bool,
    loaded: Loaded,
) -> "Signer | Keyless":
    """Who signs; whether he can is checked.

    Raises:
        click.UsageError: not one of a key and `keyless`, a certificate without a key, or a chain without a certificate.
        P2PCacheError: he can't.
    """
    from p2pcache.io.signatures.keyless import Keyless
    from p2pcache.io.signatures.library import Signer, check_signer

    if bool(key) == keyless:
        raise click.UsageError("give one of a private key (--key, of push --sign) and --keyless")
    if chain and not certificate:
        raise click.UsageError("--chain goes with --certificate")
    if keyless and certificate:
        raise click.UsageError("--certificate goes with a key; a keyless signature gets one")
    signer: Signer | Keyless
    if key:
        path = Path(certificate) if certificate else None
        signer = Signer(Path(key), path, tuple(Path(one) for one in chain))
    else:
        trust, token = loaded.settings.sigstore_trust_config, loaded.settings.identity_token_file
        signer = Keyless(
            Path(trust) if trust else None, Path(token) if token else None, may_ask=on_terminal()
        )
    check_signer(signer)
    return signer

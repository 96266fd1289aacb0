"""`token`: make and read the tokens of clients."""

import getpass
import os
import secrets
import sys
import time
from datetime import UTC, datetime

import click

from p2pcache.cli.support.options import FILE, Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.core.protocol import tokens
from p2pcache.core.protocol.tokens import Scope, Token
from p2pcache.core.units import format_duration, parse_duration
from p2pcache.errors import UsageError
from p2pcache.io.http.client import read_token
from p2pcache.io.security.cluster_key import read_cluster_key

ID_BYTES = 4  # tells tokens of one name apart in the audit log; no secret


@click.group()
def token() -> None:
    """Make and read tokens: what a client without a socket may do."""


@token.command("create", cls=Command)
@click.option(
    "--scope", type=click.Choice([str(scope) for scope in Scope]), required=True,
    help="What for; each includes those before it.",
)  # fmt: skip
@click.option(
    "--namespace", "namespaces", multiple=True, required=True, metavar="NS",
    help="Where, or '*' for everywhere; may be repeated.",
)  # fmt: skip
@click.option(
    "--expires", default="24h", metavar="DURATION", help="Good for so long [default: 24h]."
)
@click.option("--name", default="", metavar="WHO", help="Who will hold it [default: your login].")
@click.option(
    "--key-file", default="", metavar="FILE", type=FILE,
    help="The agents' token key (P2PCACHE_TOKEN_KEY_FILE), or their cluster key where they have no other.",
)  # fmt: skip
def create(scope: str, namespaces: tuple[str, ...], expires: str, name: str, key_file: str) -> None:
    """Print a signed token on stdout, and nothing else.

    It is stored nowhere and can't be taken back before it expires, except by changing the key:
    keep it short, and keep it in a file that only its holder reads.

    Examples:
      (umask 077; p2pcache token create --scope pull --namespace team --key-file KEY > token)
      p2pcache token create --scope push --namespace team --expires 2h --name ci --key-file KEY
      p2pcache --agent http://node-7:7403 ls --token-file token
    """
    path = key_file or _environment_key()
    key = tokens.signing_key(read_cluster_key(path, "token key"))
    made = tokens.make(
        token_id=secrets.token_hex(ID_BYTES), name=name or _login(), scope=Scope(scope),
        namespaces=_unique(namespaces), now=time.time(), life_s=parse_duration(expires),
    )  # fmt: skip
    emit(tokens.sign(key, made))
    if not sys.stdout.isatty():
        note(f"note: {_describe(made)}")


@token.command("show", cls=Command)
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--key-file",
    default="",
    metavar="FILE",
    type=FILE,
    help="Also check the signature, with this key.",
)
@json_option
def show(file: str, key_file: str, as_json: bool) -> None:
    """Say what the token in a file allows.

    Without --key-file nothing is proved: anybody can write a token that nobody signed.

    Examples:
      p2pcache token show ./token
      p2pcache token show ./token --key-file KEY
    """
    text = read_token(file)
    if key_file:
        key = tokens.signing_key(read_cluster_key(key_file, "token key"))
        found = tokens.verify(key, text, time.time())
    else:
        found = tokens.peek(text)
    if as_json:
        emit_document({
            "id": found.id, "name": found.name, "scope": str(found.scope),
            "namespaces": list(found.namespaces), "issued": found.issued, "expires": found.expires,
            "checked": bool(key_file),
        })  # fmt: skip
        return
    emit(clean(_describe(found)))
    emit("signature: good" if key_file else "signature: not checked (--key-file)")


def _describe(made: Token) -> str:
    """Say in one line what a token allows, and until when."""
    until = datetime.fromtimestamp(made.expires, UTC)
    left = made.expires - time.time()
    state = f"{format_duration(left)} left" if left > 0 else "expired"
    places = "every namespace" if made.rights.everywhere else ", ".join(made.namespaces)
    return f"{made.name} may {made.scope} in {places} until {until:%Y-%m-%d %H:%M} UTC ({state})"


def _environment_key() -> str:
    """Return the path of the key file that the environment names."""
    path = os.environ.get("P2PCACHE_TOKEN_KEY_FILE") or os.environ.get("P2PCACHE_CLUSTER_KEY_FILE")
    if not path:
        raise UsageError(
            "say which key the agents check tokens with: --key-file FILE (their token_key_file, or "
            "their cluster_key_file)"
        )
    return path


def _login() -> str:
    """Return the user's name; a container's user may have none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return each name once, in their order; `*` alone if it is among them."""
    return (tokens.EVERY,) if tokens.EVERY in names else tuple(dict.fromkeys(names))

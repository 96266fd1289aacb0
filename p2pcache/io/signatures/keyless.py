"""Keyless signatures: a Sigstore certifies for minutes whom an identity provider knows, and its log keeps the time.

Whom to trust for that is in a file of Sigstore's own form (`ClientTrustConfig`, JSON): certificates and keys of the
services, and where to ask them. Without one it is the public instance's, which the library asks for.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from p2pcache.errors import NotAllowed, NotFound, UsageError

TOKEN_VARIABLE = "SIGSTORE_ID_TOKEN"  # noqa: S105 - where other clients of Sigstore look, too
AUDIENCE = "sigstore"  # whom a token is made for; authorities expect it
MAX_TOKEN_BYTES = 1 << 16  # a token has some 2,000
_PREFIX, _BY = "identity:", "issuer:"


class Keyless(NamedTuple):
    """Who signs without a key of his own: whom a token names."""

    trust_config: Path | None = None
    token_file: Path | None = None
    may_ask: bool = False  # a person sits here, who can log in with a browser

    def token(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The identity token of the file, the variable SIGSTORE_ID_TOKEN, or the CI system or cloud that we run in.

        Returns:
            None: there is none, and a person is to be asked.

        Raises:
            UsageError: there is none, and nobody can be asked.
            NotFound, NotAllowed: the file can't be read.
        """
        if self.token_file is not None:
            return _token_in(self.token_file)
        found = environ.get(TOKEN_VARIABLE, "").strip() or _ambient()
        if not found and not self.may_ask:
            raise UsageError(
                "no identity token to sign with: name a file with --identity-token-file, set "
                f"{TOKEN_VARIABLE}, or sign where a CI system or cloud gives one"
            )
        return found or None


class Identity(NamedTuple):
    """Who may sign without a key: a name, and the provider that must have said so."""

    identity: str
    issuer: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.identity} {_BY}{self.issuer}"


def parse_identity(text: str) -> Identity | None:
    """Read `identity:NAME issuer:URL`; None: it doesn't begin so.

    Raises:
        UsageError: it begins so, and a part is missing.
    """
    if not text.startswith(_PREFIX):
        return None
    first, *others = text.split()
    identity = first.removeprefix(_PREFIX)
    issuers = [one.removeprefix(_BY) for one in others if one.startswith(_BY)]
    if not identity or len(others) != 1 or not issuers or not issuers[0]:
        raise UsageError(f"expected 'identity:NAME issuer:URL', not {text!r}")
    return Identity(identity, issuers[0])


def read_file(path: Path, what: str, most: int) -> bytes:
    """Read a file that a person named.

    Args:
        path: of it.
        what: it is, with its path, for people.
        most: bytes that it may have; of a longer one comes one byte more.

    Raises:
        NotFound, NotAllowed: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except FileNotFoundError:
        raise NotFound(f"no {what}: there is no such file") from None
    except OSError as error:
        raise NotAllowed(f"can't read {what}: {error.strerror}") from None


def _token_in(path: Path) -> str:
    data = read_file(path, f"identity token in {path}", MAX_TOKEN_BYTES)
    token = data.decode("ascii", "replace").strip()
    if not token or len(data) > MAX_TOKEN_BYTES:
        raise UsageError(f"{path} holds no identity token")
    return token


def _ambient() -> str | None:
    from sigstore.oidc import detect_credential

    return detect_credential(AUDIENCE)

"""Tokens: bearer tokens that say what a client may do, signed with the token key.

    p2pc1.<payload>.<mac>      both base64url without padding

The payload is JSON and no secret (`p2pcache token show` prints it); the mac is HMAC-SHA256 (RFC 2104) over
everything before it. Nothing is stored: a token is good until it expires or the key changes. The mac's key is *derived*
from the key file, so that the cluster key can serve for the members' handshake and for tokens, and neither use reveals
anything about the other.
"""

import base64
import binascii
import hmac
import re
from enum import StrEnum
from typing import NamedTuple

import msgspec
from blake3 import blake3

from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.units import format_duration
from p2pcache.errors import NotAllowed, UsageError

VERSION = "p2pc1"
EVERY = "*"  # every namespace, and what belongs to no namespace
MAX_TOKEN_CHARS = 4096  # 32 namespaces of 80 letters fit; a header line has 8 KiB
MAX_NAMESPACES = 32
MAX_LIFE_S = 366 * 86400.0  # only a change of the key revokes a token
CLOCK_SKEW_S = 120.0  # between the machine that signs and the one that checks
_CONTEXT = "p2pcache client tokens v1"  # BLAKE3 key derivation: never change it, never reuse it
_WHO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


class Scope(StrEnum):
    """What a client may do. Each scope includes those before it."""

    PULL = "pull"  # fetch models, and look
    PUSH = "push"  # store models
    ADMIN = "admin"  # remove, prune, verify; with every namespace also calls for the whole node


_RANK = {scope: rank for rank, scope in enumerate(Scope)}


class Rights(NamedTuple):
    """A scope in some namespaces."""

    scope: Scope
    namespaces: tuple[str, ...]  # `EVERY` alone, or names

    @property
    def everywhere(self) -> bool:
        """Whether they are for every namespace."""
        return EVERY in self.namespaces

    def allow(self, scope: Scope, namespace: str = "") -> bool:
        """Whether a scope is allowed in a namespace; "": in at least one."""
        if _RANK[self.scope] < _RANK[scope]:
            return False
        return self.everywhere or not namespace or namespace in self.namespaces


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The signed content. An unknown field may narrow the rights, so a token that has one is refused."""

    id: str  # random; tells two tokens of one name apart in the audit log
    name: str  # of its holder
    scope: Scope
    namespaces: tuple[str, ...]
    issued: int  # unix seconds
    expires: int

    @property
    def rights(self) -> Rights:
        """The rights that it gives."""
        return Rights(self.scope, self.namespaces)


def make(
    *,
    token_id: str,
    name: str,
    scope: Scope,
    namespaces: tuple[str, ...],
    now: float,
    life_s: float,
) -> Token:
    """A token that `sign` may sign.

    Args:
        token_id: random text.
        name: of its holder; letters, digits and `._@+-`.
        scope: of its rights.
        namespaces: of its rights; `("*",)`: all.
        now: unix seconds.
        life_s: seconds until it expires.

    Raises:
        UsageError: an argument is wrong; the message says which.
    """
    if _WHO.fullmatch(name) is None:
        raise UsageError(f"not a token's name: {name!r}; up to 64 letters, digits and ._@+-")
    check_namespaces(namespaces)
    if not 1 <= life_s <= MAX_LIFE_S:
        raise UsageError(
            f"a token lives between 1s and {MAX_LIFE_S / 86400:.0f}d, not {format_duration(life_s)}"
        )
    return Token(
        id=token_id, name=name, scope=scope, namespaces=namespaces,
        issued=int(now), expires=int(now + life_s),
    )  # fmt: skip


def check_namespaces(namespaces: tuple[str, ...]) -> None:
    """Refuse a wrong list of namespaces.

    Raises:
        UsageError: the list is empty or too long, or has something that isn't a name.
    """
    if not 1 <= len(namespaces) <= MAX_NAMESPACES:
        raise UsageError(f"name 1 to {MAX_NAMESPACES} namespaces, or * for every one")
    for name in namespaces:
        if name != EVERY and _NAMESPACE.fullmatch(name) is None:
            raise UsageError(
                f"not a namespace: {name!r}; expected lower case, for example team, or * for all"
            )


def signing_key(secret: Secret) -> Secret:
    """The key of the macs, derived from a key file's key.

    Raises:
        UsageError: there is no key.
    """
    if not secret.key:
        raise UsageError("tokens need a key: give --token-key-file or --cluster-key-file")
    key, *others = (blake3(one, derive_key_context=_CONTEXT).digest() for one in secret.taken)
    return Secret(key, tuple(others))


def sign(key: Secret, token: Token) -> str:
    """The token as one word of ASCII text.

    Args:
        key: a `signing_key`.
        token: from `make`.
    """
    body = f"{VERSION}.{_encode(msgspec.json.encode(token))}"
    return f"{body}.{_mac(key.key, body)}"


def verify(key: Secret, text: str, now: float) -> Token:
    """The token of a text that was signed with this key and is valid now.

    Args:
        key: a `signing_key`.
        text: untrusted.
        now: unix seconds.

    Raises:
        NotAllowed: the token isn't valid. The message says why, but not what the token holds.
    """
    body, dot, mac = text.rpartition(".")
    if len(text) > MAX_TOKEN_CHARS or not dot or not text.isascii():
        raise NotAllowed("that isn't a token of p2pcache; make one with: p2pcache token create")
    if not text.startswith(f"{VERSION}."):
        raise NotAllowed(
            f"that isn't a token of version {VERSION}, the one that this agent knows; make one with "
            "the agent's release, or upgrade the agent"
        )
    if not any(hmac.compare_digest(_mac(one, body), mac) for one in key.taken):
        raise NotAllowed(
            "the token's signature is wrong: it was changed, or signed with another key than this "
            "agent's; ask for a new token"
        )
    token = peek(text)
    if now >= token.expires:
        ago = format_duration(now - token.expires)
        raise NotAllowed(f"the token expired {ago} ago; ask for a new one")
    if now < token.issued - CLOCK_SKEW_S:
        raise NotAllowed(
            f"the token begins in {format_duration(token.issued - now)}: a clock is wrong, here or "
            "where it was made"
        )
    return token


def peek(text: str) -> Token:
    """The content of a token whose signature isn't checked.

    Raises:
        NotAllowed: not a token, or made by a newer release.
    """
    parts = text.split(".")
    if len(parts) != 3 or parts[0] != VERSION or len(text) > MAX_TOKEN_CHARS:
        raise NotAllowed("that isn't a token of this release; make one with: p2pcache token create")
    try:
        data = base64.b64decode(
            parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True
        )
        return msgspec.json.decode(data, type=Token)
    except (binascii.Error, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise NotAllowed(
            "the token holds what this release doesn't know; make one with this agent's release"
        ) from None


def _mac(key: bytes, body: str) -> str:
    return _encode(hmac.digest(key, body.encode(), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Texts about a storage's trouble for probes and pages without a login: its kind, in our own words.

Texts of storage and libraries, redacted or not, are for logs and for callers that may read models.
"""

from p2pcache.errors import (
    IntegrityError,
    NoSpace,
    NotAllowed,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
    UsageError,
)

_KINDS: tuple[tuple[type[P2PCacheError], str], ...] = (
    (NotAllowed, "storage refuses this node's credentials, or its access"),
    (NotFound, "the bucket or directory isn't there"),
    (NoSpace, "storage is full"),
    (IntegrityError, "storage holds other bytes than were pushed"),
    (OriginUnavailable, "storage doesn't answer"),
    (Unreachable, "no storage is open"),
    (UsageError, "a setting of the storage can't work"),
)


def openly(error: P2PCacheError) -> str:
    """One line about an error, without texts of others."""
    kind = next((words for cls, words in _KINDS if isinstance(error, cls)), "storage failed")
    return f"{kind}; the log says more"

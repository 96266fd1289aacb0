"""The one error tree. Each class carries the exit code it ends a command with.

    P2PCacheError            1  a bug, or a cause nobody classified
    ├── UsageError           2  a flag, a ref, a setting
    ├── NotFound             3  no such model, tag, file
    ├── NotAllowed           4  key, token, file permission
    ├── NoSpace              5  the disk (or quota) can't hold it
    ├── IntegrityError       6  bytes that don't match their digest; damaged records
    │   ├── InvalidManifest     an untrusted manifest broke a rule
    │   ├── InvalidHeader       a safetensors file contradicts itself
    │   ├── InvalidTorrent      an untrusted torrent broke a rule
    │   └── OriginChanged       the origin's bytes are not what was pushed
    ├── OriginUnavailable    7  storage doesn't answer (retryable)
    ├── Unreachable          8  an agent or a tracker doesn't answer (retryable)
    │   ├── NoAgent             nobody takes our calls
    │   ├── Busy                it answers, but asks us to come back later
    │   └── Lost                it had been reached, and went away in the middle
    ├── TimedOut             9  the caller's own limit ran out
    ├── Conflict            10  somebody else moved the tag
    ├── Cancelled          130  somebody ended it on purpose, or everybody left it: no failure
    └── ProtocolError
        ├── RemoteProtocolError  the peer broke the protocol: blame it, never crash
        └── LocalProtocolError   we broke it: a bug of ours

Foreign exceptions (OSError, botocore, aiohttp) become one of these once, at the edge of
`p2pcache.io`; only `cli/main.py` and the HTTP middleware turn them into codes.
"""

from typing import ClassVar

__all__ = [
    "Busy", "Cancelled", "Conflict", "IntegrityError", "InvalidHeader", "InvalidManifest", "InvalidTorrent",
    "LocalProtocolError", "Lost", "NoAgent", "NoSpace", "NotAllowed", "NotFound", "OriginChanged", "OriginUnavailable",
    "OverQuota", "P2PCacheError", "ProtocolError", "RemoteProtocolError", "TimedOut", "Unreachable", "UsageError",
]  # fmt: skip


class P2PCacheError(Exception):
    """Root of the tree. `str(error)` is one line that says what is wrong and what to do."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class UsageError(P2PCacheError):
    """A flag, ref or setting that can't be understood."""

    exit_code = 2


class NotFound(P2PCacheError):
    """No such model, tag, blob or file."""

    exit_code = 3


class NotAllowed(P2PCacheError):
    """A key, token or permission is missing or wrong."""

    exit_code = 4


class NoSpace(P2PCacheError):
    """The disk or the quota can't hold what was asked for."""

    exit_code = 5

    def __init__(self, message: str, *, coming_bytes: int = 0, short_bytes: int = 0) -> None:
        """The message, and what could be done about it.

        Args:
            message: for people.
            coming_bytes: that were to be stored; 0: it isn't known.
            short_bytes: that must be freed for them; 0: it isn't known.
        """
        super().__init__(message)
        self.coming_bytes = coming_bytes
        self.short_bytes = short_bytes


class OverQuota(NoSpace):
    """The pool's quota for a namespace is used up: no room on this disk would help."""


class IntegrityError(P2PCacheError):
    """Bytes don't match the digest that names them, or records of a cache are damaged."""

    exit_code = 6


class InvalidManifest(IntegrityError):
    """An untrusted manifest breaks a rule of format v1."""


class InvalidHeader(IntegrityError):
    """A safetensors header, or the index over several, breaks a rule of its format."""


class InvalidTorrent(IntegrityError):
    """An untrusted torrent breaks a rule, or contradicts itself."""


class OriginChanged(IntegrityError):
    """The origin holds other bytes than those that were pushed."""


class OriginUnavailable(P2PCacheError):
    """The origin doesn't answer, resets, stalls or throttles."""

    exit_code = 7
    retryable = True


class Unreachable(P2PCacheError):
    """An agent or a tracker doesn't answer."""

    exit_code = 8
    retryable = True


class NoAgent(Unreachable):
    """Nobody takes our calls: there is no socket, the connection is refused, or its name can't be resolved."""


class Busy(Unreachable):
    """An agent or a tracker has too much to do; with `yours`, too much of it from this caller."""

    def __init__(self, message: str, *, retry_after_s: float, yours: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.yours = yours


class Lost(Unreachable):
    """An agent that took our call went away before it had answered in full."""


class TimedOut(P2PCacheError):
    """The caller's own time limit ran out."""

    exit_code = 9


class Conflict(P2PCacheError):
    """Somebody else changed it first (a tag moved under us)."""

    exit_code = 10


class Cancelled(P2PCacheError):
    """Somebody ended it on purpose, or nobody waits for it any more. It isn't counted as a failure."""

    exit_code = 130


class ProtocolError(P2PCacheError):
    """Root of the wire errors."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol. Score it down and drop it; never crash."""


class LocalProtocolError(ProtocolError):
    """We broke the protocol. Always a bug of ours."""


_BY_CODE: dict[int, type[P2PCacheError]] = {
    c.exit_code: c
    for c in (
        P2PCacheError, UsageError, NotFound, NotAllowed, NoSpace, IntegrityError,
        OriginUnavailable, Unreachable, TimedOut, Conflict, Cancelled,
    )
}  # fmt: skip


def from_code(code: int, message: str) -> P2PCacheError:
    """The error class of an exit code, for errors that crossed a process boundary as JSON."""
    return _BY_CODE.get(code, P2PCacheError)(message)


def without_frames(error: P2PCacheError) -> P2PCacheError:
    """The same error, for those who keep it: the frames that it came through may have files open."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

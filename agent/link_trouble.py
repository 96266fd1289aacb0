"""Why the link to the tracker is down, in words for people."""

import errno
import ssl
import time

import aiohttp

from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable
from p2pcache.ids import NodeId, format_node
from p2pcache.io.http.exchange import reason_of
from p2pcache.io.security.tls import Tls, expiry_warning, explain

_FORBIDDEN, _UNAVAILABLE = 403, 503
_NO_TRACKER = "is that a tracker's URL? What an agent has as --listen is for peers"


class Twin(P2PCacheError):
    """The tracker has another live member with our node id; the text says where."""


class Unanswered(Unreachable):
    """A question that no tracker answered; a tracker that refuses one may give the same code."""


class Elsewhere(P2PCacheError):
    """This tracker is a standby, and the active one is dialled next; or it has just become active itself."""


class NoneActive(Unreachable):
    """We waited at a standby, and no tracker became active that takes us."""


def standby_text(active: str, *, ours: bool, itself: bool = False) -> str:
    """Describe a standby at which an agent waited in vain.

    Args:
        active: URL of the active tracker; "": not known.
        itself: it is this standby, before it was started again.
        ours: it is one that this agent is configured to dial.
    """
    if not active:
        return "it is a standby, and no tracker is active"
    if itself:
        return "it has just started, and waits until its own tenure from before is over"
    if ours:
        return f"it is a standby of {active}, which doesn't take us"
    return (
        f"it is a standby of {active}, which is none of this agent's trackers: add it to --tracker"
    )


def twin_text(node: NodeId, where: str, cache_dir: str) -> str:
    """Describe two agents with one id, and the remedy.

    Args:
        node: the id.
        where: the other agent's place; "": unknown.
        cache_dir: of this agent; "": unknown.
    """
    at = f" ({where})" if where else ""
    return (
        f"another live agent{at} has this node's id {format_node(node)}: the cache, or the image of the machine, was "
        f"copied; stop one of the two agents, delete {cache_dir or 'CACHE_DIR'}/node-id there and start it again: "
        "it makes itself a new id"
    )


def denied(error: Exception) -> bool:
    """Whether a key, certificate, name or id was the cause, ours or the tracker's: another try won't help."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return error.status == _FORBIDDEN
    return isinstance(error, NotAllowed | aiohttp.ClientConnectorCertificateError)


def failure_text(error: Exception, tls: Tls | None) -> str:
    """Describe a failed connection in one line.

    Args:
        error: its end.
        tls: our certificate, if members show one.
    """
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return _answered(error.status, tls)
    if isinstance(error, aiohttp.ServerDisconnectedError) or _was_reset(error):
        return _hung_up(tls)
    # The text of a ClientResponseError has the bytes that came, so each try would be another line of the log.
    if isinstance(error, aiohttp.ClientResponseError):
        return _hung_up(None) if tls is None else f"it speaks no HTTP; {_NO_TRACKER}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return explain(error.certificate_error)
    # The text of a ClientConnectorError shows the SSL context.
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, ssl.SSLError):
            return explain(cause)
        return f"can't connect: {reason_of(cause)}"
    return explain(error)


def _answered(status: int, tls: Tls | None) -> str:
    if status == _FORBIDDEN and tls is not None:
        return "it refuses our certificate; its log says why"
    if status == _FORBIDDEN:
        return (
            "it refuses us (HTTP 403); its log says why: on a loopback address, older releases want to be called by "
            "address or as localhost and not by another name"
        )
    if status == _UNAVAILABLE:
        return f"it is busy or stopping (HTTP {status})"
    return f"it answers HTTP {status}: is that a tracker's URL, and is it well?"


def _was_reset(error: Exception) -> bool:
    """Whether it hung up while we wrote or read; which of the two is chance."""
    return isinstance(error, OSError) and (
        isinstance(error, ConnectionResetError) or error.errno in (errno.ECONNRESET, errno.EPIPE)
    )


def _hung_up(tls: Tls | None) -> str:
    # A peer's port hangs up or answers in its own protocol, as it comes: one text, which is logged once.
    if tls is None:
        return (
            f"it hung up on us, or speaks no HTTP; {_NO_TRACKER}. Where members show certificates "
            "a tracker's URL begins with https://"
        )
    # In TLS 1.3 a refusal comes after our side of the handshake, and asyncio's servers send no reason.
    text = f"it hung up on {tls.member}; does it know our CA? Its log says why"
    return expiry_warning(tls.now, time.time()) or text

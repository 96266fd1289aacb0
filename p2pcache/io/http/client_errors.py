"""What a broken call of the local API means, in words. Standard library only."""

import http.client

from p2pcache.errors import Busy, Lost, NotAllowed, P2PCacheError, Unreachable


def translated(error: BaseException, address: str) -> P2PCacheError:
    """The error of our own tree for what the socket or the HTTP library raised."""
    if isinstance(error, FileNotFoundError):
        return Unreachable(
            f"no agent at {address}: the socket isn't there; start one with 'p2pcache agent'"
        )
    if isinstance(error, BlockingIOError):  # a unix socket whose queue of callers is full
        return Busy(f"the agent at {address} has too many callers", retry_after_s=0.5)
    if isinstance(error, PermissionError):
        return NotAllowed(
            f"not allowed to use the agent at {address}: {error.strerror}; check the socket's group"
        )
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            f"no agent answers at {address}; start one with 'p2pcache agent' or check --agent"
        )
    if isinstance(error, TimeoutError):
        return Unreachable(f"the agent at {address} doesn't answer; look at its log")
    if isinstance(error, http.client.HTTPException) and not isinstance(
        error, ConnectionError | http.client.IncompleteRead
    ):
        return Unreachable(
            f"what answers at {address} is no agent's API; check --agent (an agent's --listen is for peers)"
        )
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Lost(f"lost the agent at {address}: {text}; run the command again to resume")

"""A request to a neighbour, as the neighbours' side keeps it."""

from dataclasses import dataclass

from p2pcache.core.peers import Peer


@dataclass(slots=True)
class Asked:
    """One `Request` that hasn't ended."""

    peer: Peer
    run: int
    started: float
    # When it was sent; or if the sender's last run had to end first, that time less what an answer takes. Inf: it
    # waits for that end.
    since: float
    live: bool = True  # False: cancelled or its peer is gone, only its end is awaited
    followed: bool = False  # the sender was asked for the next one already
    twin: bool = False  # a second request for the same run is in flight

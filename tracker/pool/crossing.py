"""Answers the question "crossing": may a node bring a model in from another cluster's site, or does another one?"""

import msgspec

from p2pcache.core.coordinator.crossings import Crossings
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.errors import UsageError
from p2pcache.ids import is_digest, parse_node
from p2pcache.io.clock import Clock


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a "crossing"."""

    digest: str
    node: str
    ends: bool = False


class Crossing:
    """Gives turns to members, one of each site for each model."""

    def __init__(self, tracking: TrackerState, clock: Clock) -> None:
        """Nobody has a turn."""
        self._registry = tracking.registry
        self._clock = clock
        self._crossings = Crossings()

    def turn(self, text: str) -> dict[str, object]:
        """Take, renew or end a turn.

        Raises:
            UsageError: the text is no wish of a member.
        """
        try:
            wish = msgspec.json.decode(text, type=Wish)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"not a crossing: {error}") from None
        node = parse_node(wish.node)
        member = self._registry.nodes.get(node)
        if member is None or not is_digest(wish.digest):
            raise UsageError("a crossing names a manifest's digest and a member")
        site = member.member.site
        if wish.ends:
            self._crossings.end_turn(site, wish.digest, node)
            return {"yours": False}
        return {"yours": self._crossings.take_turn(site, wish.digest, node, self._clock.now())}

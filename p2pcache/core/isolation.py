"""Whether a node reaches any other one of its swarm: neighbours come and go, dials fail. Pure."""

import math

from p2pcache.core.settings import SwarmSettings


class Isolation:
    """Since when there is no neighbour, and whether that is for want of trying."""

    def __init__(self, settings: SwarmSettings, now: float) -> None:
        """There is none yet."""
        self._settings = settings
        self._alone_since = now  # inf: there is a neighbour
        self._failed_at = -math.inf  # when a member couldn't be dialled, last

    def met(self) -> None:
        """There is a neighbour."""
        self._alone_since = math.inf

    def lost(self, now: float) -> None:
        """The last neighbour is gone."""
        self._alone_since = now

    def dial_failed(self, now: float) -> None:
        """A member couldn't be reached."""
        self._failed_at = now

    def found(self, progress_at: float, now: float) -> bool:
        """Whether others were dialled in vain for so long that nobody will bring anything.

        Args:
            progress_at: when something wanted came last, also by leases: what a tracker lets us read once
                more, a few runs at a time, is no sign that others bring something.
            now: seconds.
        """
        long = now >= self._alone_since + self._settings.owner_patience_s
        quiet = now >= progress_at + self._settings.stuck_after_s
        return long and quiet and self._alone_since <= self._failed_at

"""What the neighbours don't know yet of what we have, and when they are told. Pure."""

import math

from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Announce, Command


class News:
    """Runs that were proved since the last announcement: a batch for everybody."""

    def __init__(self, settings: SwarmSettings) -> None:
        """Nothing is new."""
        self._interval_s = settings.have_interval_s
        self._runs = 0  # bits, that nobody knows of
        self._told_at = -math.inf

    def add(self, runs: int) -> None:
        """We have these runs (bits) since now."""
        self._runs |= runs

    def lose(self, runs: int) -> None:
        """We don't have them any more."""
        self._runs &= ~runs

    def tell(self, now: float, out: list[Command]) -> None:
        """Announce what is due."""
        if self._runs and now >= self._told_at + self._interval_s:
            out.append(Announce(self._runs))
            self._runs, self._told_at = 0, now

    def next_at(self) -> float:
        """When something is due; inf: nothing is new."""
        return self._told_at + self._interval_s if self._runs else math.inf

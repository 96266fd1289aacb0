"""What the neighbours don't know yet of what we have, and when they are told. Pure."""

import math

from p2pcache.core.commands import Announce, Command
from p2pcache.core.settings import SwarmSettings


class News:
    """Runs that were proved since the last announcement: a batch for everybody, and sooner for whom we supply."""

    def __init__(self, settings: SwarmSettings) -> None:
        """Nothing is new."""
        self._settings = settings
        self._runs = 0  # bits, that nobody knows of
        self._told_at = -math.inf
        self._supplied = 0  # ... and that those don't whom we supply
        self._supplied_at = -math.inf

    def add(self, runs: int, *, supplying: bool) -> None:
        """We have these runs (bits) since now; others may wait for us to bring them."""
        self._runs |= runs
        if supplying:
            self._supplied |= runs

    def lose(self, runs: int) -> None:
        """We don't have them any more."""
        self._runs &= ~runs
        self._supplied &= ~runs

    def tell(self, now: float, out: list[Command]) -> None:
        """Announce what is due."""
        if self._runs and now >= self._told_at + self._settings.have_interval_s:
            out.append(Announce(self._runs))
            self._runs, self._told_at = 0, now
        if self._supplied and now >= self._supplied_at + self._settings.supply_interval_s:
            out.append(Announce(self._supplied, supplied=True))
            self._supplied, self._supplied_at = 0, now

    def next_at(self) -> float:
        """When something is due; inf: nothing is new."""
        at = self._told_at + self._settings.have_interval_s if self._runs else math.inf
        if self._supplied:
            at = min(at, self._supplied_at + self._settings.supply_interval_s)
        return at

"""Whether the origin's bytes are what the manifest says. Pure."""

from p2pcache.core import chunkset

STOP_S = 30.0  # after wrong origin bytes; restarting pods must not turn into an endless refetch


class WrongBytes:
    """Who got bytes from the origin that don't match, and whether that is enough to stop all leases."""

    def __init__(self, nodes_to_stop: int) -> None:
        """Nobody has; so many nodes must agree."""
        self.stopped: int | None = None  # the run whose origin bytes are wrong
        self._nodes_to_stop = nodes_to_stop
        self._stopped_at = 0.0
        self._seen: dict[int, list[int]] = {}  # run -> who saw wrong bytes, in order

    def seen(self, node: int, runs: int, now: float, *, alone: bool) -> int | None:
        """A node did, of these runs (bits), and perhaps is the only one that reads.

        Returns:
            The run for which leases just stopped, when enough nodes agree (or the only one that
            reads saw it twice); None otherwise.
        """
        for run in chunkset.members(runs):
            seen = self._seen.setdefault(run, [])
            seen.append(node)
            enough = len(set(seen)) >= self._nodes_to_stop
            if self.stopped is None and (enough or (alone and len(seen) > 1)):
                self.stopped, self._stopped_at = run, now
                return run
        return None

    def resume(self, now: float, *, wanted: bool) -> bool:
        """Whether leases flow (again): a stop ends once nobody wants and a while has passed."""
        # The origin may have been repaired; two wrong reads more tell if it wasn't.
        if self.stopped is not None and not wanted and now >= self._stopped_at + STOP_S:
            self.stopped = None
            self._seen.clear()
        return self.stopped is None

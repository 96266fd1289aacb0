"""What a node tells its tracker of needed runs that don't come: no neighbour has them, or none delivers them."""

from p2pcache.core import bitset
from p2pcache.core.protocol.messages import MAX_STUCK
from p2pcache.core.swarm.commands import Stuck
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId, RunSet


class StuckWatch:
    """Needed runs that no neighbour has had for a whole interval."""

    def __init__(self, context: SwarmContext, now: float) -> None:
        """The first review is due one interval from now."""
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self.on_tracker_up(now)

    def on_tracker_up(self, now: float) -> None:
        """The tracker is back: runs that lacked a holder before then may be granted now."""
        self._suspects: RunSet = 0  # runs of the window that lacked a holder at the last review
        self._reached = 0  # all runs that anybody had then are below this index
        self.deadline = now + self._settings.stuck_after_s

    def on_doubted(self, node: NodeId, now: float) -> None:
        """A neighbour doesn't deliver: its runs have been waited for long enough."""
        peer = self._book.peers.get(node)
        if peer is not None:
            self._suspects |= peer.have & self._states.needed
            self.deadline = now

    def find_stuck(self, progress_at: float, now: float) -> tuple[RunSet, Stuck]:
        """The runs of the window that have lacked a holder for a whole interval, and what to tell the tracker of them.

        `progress_at` is when a needed run last came, or came into reach.
        """
        interval_s = self._settings.stuck_after_s
        self.deadline = now + interval_s
        states, peers, held = self._states, self._book.peers, self._book.rarity.held
        lacking = states.free & ~states.leased & ~held
        orphans = lacking & states.window(self._settings.window_runs)
        waited = stuck = self._suspects & orphans
        if now < progress_at + interval_s:
            # Leases are granted in order: a run above all that anybody had then may be under way.
            stuck &= bitset.full(self._reached)
        self._suspects = orphans
        self._reached = (held & states.wanted).bit_length()
        # One whose connection only ended is asked again first: a restart, or a switch that resets connections, is no
        # reason to void what it has.
        failing = tuple(sorted(
            node for node, one in peers.items()
            if not one.delivers and one.have & stuck and (one.stalls or one.refused_since)
        ))  # fmt: skip
        return waited, Stuck(bitset.lowest(stuck, MAX_STUCK), lacking, failing)

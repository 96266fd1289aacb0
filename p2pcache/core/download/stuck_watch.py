"""What a node tells its tracker of runs that don't come: nobody has them, or who has them doesn't deliver. Pure."""

from p2pcache.core import bitset
from p2pcache.core.download.delivery import Deliveries
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Blame, Command, Stuck
from p2pcache.core.swarm.run_states import RunBook

_STUCK_AT_ONCE = 64  # runs in one Stuck notice: what a tracker can look into at once


class StuckWatch:
    """Runs that are wanted and that no neighbour has had for a whole interval."""

    def __init__(
        self, mine: RunBook, book: PeerBook, deliveries: Deliveries, settings: SwarmSettings, now: float
    ) -> None:  # fmt: skip
        self._mine = mine
        self._book = book
        self._deliveries = deliveries
        self._settings = settings
        self._suspects = 0  # window runs without a holder at the last look
        self._reached = 0  # all runs that anybody had then are below
        self.look_at = now + settings.stuck_after_s

    def restart(self, now: float) -> None:
        """The tracker is there: what lacked a holder before says nothing now."""
        self._suspects = 0
        self.look_at = now + self._settings.stuck_after_s

    def doubted(self, node: int, now: float) -> None:
        """A neighbour doesn't deliver: what it has was waited for long enough."""
        peer = self._book.peers.get(node)
        if peer is not None:
            self._suspects |= peer.have & self._mine.needed
            self.look_at = now

    def look(self, progress_at: float, now: float) -> tuple[int, int, int]:
        """Those of the window that lack a holder for long, those of them to tell of, and all that lack one (bits).

        Args:
            progress_at: when something that we want came in or into reach last.
            now: seconds.
        """
        interval = self._settings.stuck_after_s
        self.look_at = now + interval
        mine, held = self._mine, self._book.rarity.held
        lacks = mine.free & ~mine.leased & ~held
        orphans = lacks & mine.window(self._settings.window_runs)
        waited = stuck = self._suspects & orphans
        if now < progress_at + interval:
            # Leases go out in order: runs above all that anybody had then weren't read yet, and may be under way.
            stuck &= bitset.full(self._reached)
        self._suspects = orphans
        self._reached = (held & mine.wanted).bit_length()
        return waited, stuck, lacks

    def tell(self, stuck: int, lacks: int, out: list[Command]) -> None:
        """Tell the tracker, also who has these runs and gives us nothing."""
        peers, runs = self._book.peers, bitset.lowest(stuck, _STUCK_AT_ONCE)
        vain = sorted(
            node for node in self._deliveries.in_vain if node in peers and peers[node].have & stuck
        )
        self.blame_again(out)
        out.append(Stuck(runs, lacks, tuple(vain)))

    def blame_again(self, out: list[Command]) -> None:
        """Tell a tracker that may not know who sent us wrong bytes.

        One that restarted, or that a liar came back to, believes what the liar says it has, and would send us there
        for ever.
        """
        out += [Blame(node, run) for node, run in self._book.barred.items()]

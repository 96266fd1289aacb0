"""What this node knows of its neighbours in one swarm."""

from collections.abc import Iterable, Iterator, Sequence

from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import Boundaries, Reach
from p2pcache.core.swarm.commands import Dial
from p2pcache.core.swarm.snapshot import PeerView
from p2pcache.ids import NodeId, RunIndex, RunSet


class PeerBook:
    """The neighbours, and how many of them hold each run.

    A neighbour is **fit** if it delivers and isn't at rest after a stall.

    Invariants (`check`): `rarity` counts exactly what delivering neighbours have; no banned node is a neighbour; with
    boundaries, `_near` has what fit neighbours have within each distance, and `rarity_in_rack` counts exactly what
    delivering neighbours in our rack have. (Without boundaries it is `rarity`.)
    """

    def __init__(self, boundaries: Boundaries) -> None:
        """No neighbours yet; `boundaries`: where nodes are."""
        self._boundaries = boundaries
        self._near: list[RunSet] = [0, 0, 0]  # of fit neighbours in our rack, our site, anywhere
        self.peers: dict[NodeId, Peer] = {}
        self.received = 0  # runs that neighbours came to have while they were connected
        self.rarity = Rarity()
        # Holders where most of us may ask: a run that the rack has once is rare in the rack.
        self.rarity_in_rack = self.rarity
        self.dialling: set[NodeId] = set()  # from a `Dial` to its end
        self.banned: dict[NodeId, RunIndex] = {}  # node -> the run of which it sent wrong bytes

    # -- what happened ------------------------------------------------------------------------

    def on_connected(
        self, node: NodeId, have: RunSet, now: float, rtt_s: float = 0.0
    ) -> Peer | None:
        """A neighbour connected, for the first time or again; None if it is banned.

        Args:
            node: its id.
            have: runs that it has, as it says.
            now: seconds.
            rtt_s: the shortest round trip to it; 0: not known.
        """
        self.dialling.discard(node)
        self.on_disconnected(node)
        if node in self.banned:
            return None
        peer = self.peers[node] = Peer(node, have, now, self._boundaries.distance(node), rtt_s)
        self._count(peer, have)
        self._add_near(peer, have)
        return peer

    def on_disconnected(self, node: NodeId) -> Peer | None:
        """A neighbour is gone; None if it wasn't one."""
        peer = self.peers.pop(node, None)
        if peer is not None:
            self._discount(peer, peer.have)
            self._find_near()
        return peer

    def dials(self, nodes: Iterable[NodeId]) -> list[Dial]:
        """Dials to members. One that is under way, whoever asked for it, isn't begun again."""
        fresh = [node for node in nodes if node not in self.dialling]
        self.dialling.update(fresh)
        return [Dial(node) for node in fresh]

    def on_dial_failed(self, node: NodeId) -> None:
        """A dial has ended without a connection."""
        self.dialling.discard(node)

    def ban(self, node: NodeId, run: RunIndex) -> None:
        """A node sent wrong bytes of this run: never ask it again."""
        self.banned[node] = run
        self.on_disconnected(node)

    def doubt(self, peer: Peer) -> None:
        """A neighbour doesn't deliver: what it claims to have doesn't count."""
        self._discount(peer, peer.have)
        peer.delivers = False
        self._find_near()

    def believe(self, peer: Peer) -> None:
        """A doubted neighbour delivers: what it has counts again."""
        peer.delivers = True
        self._count(peer, peer.have)
        self._find_near()

    def on_have(self, peer: Peer, runs: RunSet) -> RunSet:
        """A neighbour says that it has these runs; returns those that it hadn't said before."""
        fresh = runs & ~peer.have
        if fresh:
            peer.have |= fresh
            self.received += fresh.bit_count()
            if not peer.delivers:
                pass
            elif self._boundaries.active:
                self._count(peer, fresh)
                self._add_near(peer, fresh)
            else:  # the usual case, kept short
                self.rarity.add_holder(fresh)
        return fresh

    def on_refused(self, peer: Peer, runs: RunSet) -> None:
        """A neighbour doesn't have these runs any more."""
        gone = runs & peer.have
        peer.have &= ~gone
        self._discount(peer, gone)
        self._find_near()

    def on_members(
        self, nodes: Sequence[NodeId], rack: tuple[NodeId, ...], site: tuple[NodeId, ...]
    ) -> None:
        """The member list came.

        Args:
            nodes: all members.
            rack: those in our rack.
            site: those in our site.
        """
        self._boundaries.on_members(nodes, rack, site)
        for peer in self.peers.values():
            peer.distance = self._boundaries.distance(peer.node)
        self.rarity_in_rack = Rarity() if self._boundaries.active else self.rarity
        for peer in self.peers.values() if self._boundaries.active else ():
            if not peer.distance and peer.delivers:
                self.rarity_in_rack.add_holder(peer.have)
        self._find_near()

    # -- racks --------------------------------------------------------------------------------

    @property
    def has_boundaries(self) -> bool:
        """Whether any member is beyond a boundary."""
        return self._boundaries.active

    @property
    def reach(self) -> Reach:
        """Runs that may be asked for, by distance."""
        return self._boundaries.reach(self._near[0], self._near[1])

    @property
    def to_bridge(self) -> RunSet:
        """Runs beyond a boundary that this node is to bring."""
        if not self._boundaries.active:
            return 0
        _, site, elsewhere = self.reach
        return self._near[1] & site | self._near[2] & elsewhere

    def only_beyond(self, needed: RunSet) -> tuple[RunSet, RunSet]:
        """Those of `needed` that fit neighbours have beyond our rack only, and beyond our site only."""
        near, site, anywhere = self._near
        return needed & site & ~near, needed & anywhere & ~site

    def review_bridges(self, needed: RunSet, *, starved: bool) -> None:
        """Let more of us bring what has waited beyond a boundary.

        Args:
            needed: runs that we need.
            starved: whether nothing has come for long.
        """
        self._boundaries.review(*self.only_beyond(needed), starved=starved)

    # -- what follows -------------------------------------------------------------------------

    def fit_runs(self) -> RunSet:
        """Runs that a fit neighbour has."""
        union = 0
        for peer in self.peers.values():
            if peer.delivers and not peer.stalls:
                union |= peer.have
        return union

    def views(self, needed: RunSet, now: float) -> Iterator[PeerView]:
        """All neighbours, for people; `needed` are the runs that we need."""
        for peer in self.peers.values():
            yield PeerView(
                peer.node, (peer.have & needed).bit_count(), peer.in_flight, peer.load,
                peer.rate(now),
                max(0.0, peer.free_at - now), peer.delivers,
            )  # fmt: skip

    def check(self) -> None:
        """Assert the invariants."""
        counted, near = Rarity(), Rarity()
        for peer in self.peers.values():
            counted.add_holder(peer.have if peer.delivers else 0)
            near.add_holder(peer.have if peer.delivers and not peer.distance else 0)
            assert peer.node not in self.banned
            assert peer.in_flight >= 0
        for kept, seen in ((self.rarity, counted), (self.rarity_in_rack, near)):
            assert kept.planes[: len(seen.planes)] == seen.planes, "counts differ from have-sets"
            assert not any(kept.planes[len(seen.planes) :])
        for peer in self.peers.values() if self.has_boundaries else ():
            assert peer.distance == self._boundaries.distance(peer.node)

    # -- within -------------------------------------------------------------------------------

    def _count(self, peer: Peer, runs: RunSet) -> None:
        self.rarity.add_holder(runs)
        if self._boundaries.active and not peer.distance:
            self.rarity_in_rack.add_holder(runs)

    def _discount(self, peer: Peer, runs: RunSet) -> None:
        if not peer.delivers:
            return
        self.rarity.remove_holder(runs)
        if self._boundaries.active and not peer.distance:
            self.rarity_in_rack.remove_holder(runs)

    def _add_near(self, peer: Peer, runs: RunSet) -> None:
        if self._boundaries.active and peer.delivers and not peer.stalls:
            for distance in range(peer.distance, 3):
                self._near[distance] |= runs

    def _find_near(self) -> None:
        """Compute `_near` again: a neighbour moved, left or isn't fit any more; O(neighbours)."""
        if self._boundaries.active:
            self._near = [0, 0, 0]
            for peer in self.peers.values():
                self._add_near(peer, peer.have)

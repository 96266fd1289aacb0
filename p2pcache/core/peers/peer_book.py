"""What this node knows of its neighbours in one swarm."""

from collections.abc import Iterable, Iterator, Sequence

from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import EVERYWHERE, Boundaries, Reach
from p2pcache.core.swarm.commands import Dial
from p2pcache.core.swarm.snapshot import PeerView
from p2pcache.ids import NodeId, RunIndex, RunSet


class PeerBook:
    """The neighbours, and how many of them hold each run.

    Invariants (`check`): `rarity` counts exactly what delivering neighbours have, and with boundaries `_near` exactly
    what those of them have that are in our rack, and in our site; no banned node is a neighbour.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        """No neighbours yet; `boundaries`: where nodes are."""
        self._boundaries = boundaries
        self.peers: dict[NodeId, Peer] = {}
        self.rarity = Rarity()
        # Holders in our rack, then holders in our site; empty: there are no boundaries.
        self._near: list[Rarity] = []
        self._count_near()
        self.dialling: set[NodeId] = set()  # from a `Dial` to its end
        self.banned: dict[NodeId, RunIndex] = {}  # node -> the run of which it sent wrong bytes

    # -- what happened ------------------------------------------------------------------------

    def on_connected(
        self, node: NodeId, have: RunSet, now: float, rtt_s: float = 0.0
    ) -> Peer | None:
        """A node that is no neighbour connected and has these runs, as it says; None if it is banned."""
        self.dialling.discard(node)
        if node in self.banned:
            return None
        peer = self.peers[node] = Peer(node, have, now, self._boundaries.distance(node), rtt_s)
        self._count(peer, have)
        return peer

    def on_disconnected(self, node: NodeId) -> Peer | None:
        """A neighbour is gone; None if it wasn't one."""
        peer = self.peers.pop(node, None)
        if peer is not None:
            self._discount(peer, peer.have)
        return peer

    def dials(self, nodes: Iterable[NodeId]) -> list[Dial]:
        """Dials to members, but not to those that are being dialled already, whichever part asked for it."""
        fresh = [node for node in nodes if node not in self.dialling]
        self.dialling.update(fresh)
        return [Dial(node) for node in fresh]

    def ban(self, node: NodeId, run: RunIndex) -> Peer | None:
        """A node sent wrong bytes of this run: never ask it again; returns the neighbour that it was."""
        self.banned[node] = run
        self._boundaries.on_delivers(node, delivers=False)
        return self.on_disconnected(node)

    def on_delivers(self, peer: Peer, *, delivers: bool) -> None:
        """Whether a neighbour delivers has changed: what it claims to have counts, or doesn't."""
        self._discount(peer, peer.have)
        peer.delivers = delivers
        self._count(peer, peer.have)
        self._boundaries.on_delivers(peer.node, delivers=delivers)

    def on_have(self, peer: Peer, runs: RunSet) -> RunSet:
        """A neighbour says that it has these runs; returns those that it hadn't said before."""
        fresh = runs & ~peer.have
        if fresh:
            peer.have |= fresh
            self._count(peer, fresh)
        return fresh

    def on_refused(self, peer: Peer, runs: RunSet) -> None:
        """A neighbour doesn't have these runs any more."""
        gone = runs & peer.have
        peer.have &= ~gone
        self._discount(peer, gone)

    def on_members(
        self, nodes: Sequence[NodeId], rack: tuple[NodeId, ...], site: tuple[NodeId, ...]
    ) -> None:
        """The member list came: all members, those in our rack and those in our site."""
        self._boundaries.on_members(nodes, rack, site)
        self._count_near()

    # -- racks --------------------------------------------------------------------------------

    @property
    def has_boundaries(self) -> bool:
        """Whether any member is beyond a boundary."""
        return self._boundaries.active

    @property
    def rarity_in_rack(self) -> Rarity:
        """Holders in our rack, where most nodes of the rack may ask; without boundaries all holders."""
        return self._near[0] if self._near else self.rarity

    @property
    def reach(self) -> Reach:
        """Runs that may be asked for, by distance."""
        if not self._near:
            return EVERYWHERE
        rack, site = self._near
        return self._boundaries.reach(rack.held, site.held)

    @property
    def to_bridge(self) -> RunSet:
        """Runs beyond a boundary that this node is to bring."""
        if not self._near:
            return 0
        _, site, elsewhere = self.reach
        return self._near[1].held & site | self.rarity.held & elsewhere

    def only_beyond(self, needed: RunSet) -> tuple[RunSet, RunSet]:
        """Those of `needed` that neighbours have beyond our rack only, and beyond our site only."""
        near, site = (one.held for one in self._near)
        return needed & site & ~near, needed & self.rarity.held & ~site

    def review_bridges(self, needed: RunSet, *, starved: bool) -> None:
        """Let more of us bring what has waited beyond a boundary; `starved`: nothing has come for long."""
        self._boundaries.review(*self.only_beyond(needed), starved=starved)

    # -- what follows -------------------------------------------------------------------------

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
        seen = [Rarity(), Rarity(), Rarity()]  # up to each distance
        for peer in self.peers.values():
            for one in seen[peer.distance :] if peer.delivers else ():
                one.add_holder(peer.have)
            assert peer.node not in self.banned
            assert peer.in_flight >= 0
            assert peer.distance == self._boundaries.distance(peer.node)
        assert bool(self._near) == self._boundaries.active
        for kept, counted in zip(
            (*self._near, self.rarity), seen[-1 - len(self._near) :], strict=True
        ):
            length = len(counted.planes)
            assert kept.planes[:length] == counted.planes, "counts differ from have-sets"
            assert not any(kept.planes[length:])

    # -- within -------------------------------------------------------------------------------

    def _count(self, peer: Peer, runs: RunSet) -> None:
        for one in (self.rarity, *self._near[peer.distance :]) if peer.delivers else ():
            one.add_holder(runs)

    def _discount(self, peer: Peer, runs: RunSet) -> None:
        for one in (self.rarity, *self._near[peer.distance :]) if peer.delivers else ():
            one.remove_holder(runs)

    def _count_near(self) -> None:
        """Count again what is near: the boundaries may be others."""
        self._near = [Rarity(), Rarity()] if self._boundaries.active else []
        for peer in self.peers.values():
            peer.distance = self._boundaries.distance(peer.node)
            for one in self._near[peer.distance :] if peer.delivers else ():
                one.add_holder(peer.have)

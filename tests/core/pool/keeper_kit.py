"""A keeper and the nodes of a small cluster."""

from p2pcache.core import bitset
from p2pcache.core.pool.intent import Key, PoolNode, Wish
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.selector import Selector, Traits
from p2pcache.ids import NodeId, RunSet

KEY: Key = ("team", "llama", "v1")
DIGEST = "5a" * 32
RUNS = 128
RUN_BYTES = 4 << 20
EVERY = bitset.full(RUNS)
GRACE_S = 60.0
GiB = 1 << 30


class Cluster:
    """A keeper, its nodes, and what they have. Every node obeys at once when it is told to."""

    def __init__(self, nodes: int, *, began: float = 0.0, racks: int = 4, room: int = 100 * GiB) -> None:  # fmt: skip
        self.keeper = Keeper(began, grace_s=GRACE_S, settle_s=5.0)
        self.now = began
        self.nodes = {
            1000 + i: PoolNode(Traits(f"n{i}", "eu", f"r{i % racks}", "cache", ()), room)
            for i in range(nodes)
        }
        self.haves: dict[NodeId, RunSet] = {}
        self.drained: set[NodeId] = set()
        self.keeper.on_nodes(self.nodes, self.now)

    def keep(
        self, copies: int = 1, *, whole: bool = False, selector: str = "", older: bool = False
    ) -> None:
        wish = Wish(DIGEST, copies, whole, Selector.parse(selector), older)
        self.keeper.on_wish(KEY, wish, [RUN_BYTES] * RUNS)
        self.look()

    def look(self, after_s: float = 0.0) -> set[NodeId]:
        self.now += after_s
        self.keeper.on_nodes(self.nodes, self.now, drained=self.drained)
        here = {node: have for node, have in self.haves.items() if node in self.nodes}
        changed = self.keeper.review(KEY, here, self.now)
        self.keeper.check()
        return changed

    def ordered(self, node: NodeId) -> RunSet:
        orders = self.keeper.orders(node)
        if any(order.whole for order in orders):
            return EVERY
        return bitset.of(r for o in orders for a, b in o.ranges for r in range(a, b))

    def obey(self) -> int:
        """All nodes have what they are ordered to, and nothing else; returns the runs that moved."""
        moved = 0
        for node in self.nodes:
            wanted = self.ordered(node)
            moved += (wanted & ~self.haves.get(node, 0)).bit_count()
            self.haves[node] = wanted
        self.look()
        return moved

    def kept(self, copies: int = 1) -> None:
        """Begin with a model that is kept already."""
        self.keep(copies)
        self.obey()
        assert self.progress == (copies, copies, 0)

    @property
    def progress(self) -> tuple[int, int, int]:
        found = self.keeper.intents[KEY].progress
        assert found is not None
        return found.copies, found.target, found.missing_bytes

    @property
    def missing_places(self) -> int:
        found = self.keeper.intents[KEY].progress
        assert found is not None
        return found.missing_places

"""The list of a small cluster's nodes, as each of them has it after every message."""

from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.coordinator.cluster_list import ClusterList
from p2pcache.core.membership.outputs import Output, Send
from p2pcache.core.membership.registry import Node
from p2pcache.core.protocol.messages import EVERYBODY, Announce, Member, Swarm
from p2pcache.ids import NodeId

MOST = 4


class Cluster:
    """Nodes, and what each has put together."""

    def __init__(self, most: int) -> None:
        self.out: list[Output] = []
        self.list = ClusterList(self.out, most)
        self.nodes: dict[NodeId, Node] = {}
        self.has: dict[NodeId, dict[NodeId, Member]] = {}
        self.messages = 0

    def announce(self, node: NodeId, port: int) -> None:
        self.nodes[node] = Node(Member(node, f"10.0.0.{node}:{port}"), Announce("", "1"), 0.0)
        self.has[node] = {}  # it may have started again
        self.list.tell_all(node, self.nodes)
        self.take()

    def leave(self, node: NodeId) -> None:
        if self.nodes.pop(node, None) is not None:
            self.list.on_left(node)
            self.take()

    def take(self) -> None:
        out = self.out.copy()
        self.out.clear()
        for sent in out:
            assert isinstance(sent, Send)
            message = sent.message
            assert isinstance(message, Swarm)
            assert message.digest == EVERYBODY
            self.messages += 1
            mine = {} if message.full else self.has[sent.node]
            mine |= {member.node: member for member in message.joined}
            for gone in message.left:
                mine.pop(gone, None)
            self.has[sent.node] = mine

    def check(self) -> None:
        right = {node: record.member for node, record in self.nodes.items()}
        for node in self.nodes:
            assert self.has[node] in (right, {}), "a list is whole, or there is none"


events = st.lists(st.tuples(st.booleans(), st.integers(1, 7), st.integers(1, 2)), max_size=40)


@given(events)
def test_a_list_is_whole_or_there_is_none(happens: list[tuple[bool, NodeId, int]]) -> None:
    cluster = Cluster(MOST)
    for comes, node, port in happens:
        cluster.announce(node, port) if comes else cluster.leave(node)
        cluster.check()
        if comes:
            assert bool(cluster.has[node]) == (len(cluster.nodes) <= MOST)


def test_who_is_there_hears_of_newcomers_only() -> None:
    cluster = Cluster(100)
    for node in range(1, 101):
        cluster.announce(node, 1)
    assert cluster.messages == sum(range(1, 101))
    cluster.announce(7, 1)  # its link was lost for a moment
    assert cluster.messages == sum(range(1, 101)) + 1


class Uncounted(dict[NodeId, Node]):
    """A registry at whose nodes nobody looks."""

    def items(self) -> NoReturn:
        raise AssertionError("each of 10,000 nodes would be looked at for each of them")


def test_a_large_cluster_is_counted_only() -> None:
    nodes = Uncounted({n: Node(Member(n, ""), Announce("", "1"), 0.0) for n in range(5)})
    out: list[Output] = []
    ClusterList(out, 4).tell_all(1, nodes)
    assert not out

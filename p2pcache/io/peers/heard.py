"""What the nodes of one model's swarm said that they have."""

from p2pcache.ids import NodeId, RunSet

MAX_HEARD = (
    2048  # nodes, far more than a node has neighbours: callers may come under any number of ids
)


class Heard:
    """Outside the deciders, what others have stands only here (loop's thread).

    It outlives connections, since a node that has all of a model hangs up on its neighbours.
    """

    def __init__(self) -> None:
        """Nobody has said anything."""
        self.runs: dict[NodeId, RunSet] = {}

    def runs_of(self, node: NodeId) -> RunSet:
        """The runs that a node has."""
        return self.runs.get(node, 0)

    def on_list(self, node: NodeId, runs: RunSet, *, dialled: bool) -> None:
        """A node said all that it has; `dialled`: by this node, so that there is always room for it."""
        if dialled or node in self.runs or len(self.runs) < MAX_HEARD:
            self.runs[node] = runs

    def on_more(self, node: NodeId, runs: RunSet) -> None:
        """A node has these runs, too."""
        if node in self.runs:
            self.runs[node] |= runs

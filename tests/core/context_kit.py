"""What the parts of a swarm's decider share, for tests of one part."""

from collections.abc import Sequence
from random import Random

from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.run_log import RunLog
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.counters import Counters
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId


def context_of(
    states: RunStates, book: PeerBook, run_bytes: Sequence[int] = (), *, node: NodeId = 1
) -> SwarmContext:
    """Of a node with these runs and neighbours, all else as usual."""
    return SwarmContext(
        node, run_bytes, states, book, SwarmSettings(), Random(1), Counters(), RunLog(100)
    )

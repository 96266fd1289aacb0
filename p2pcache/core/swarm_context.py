"""What the parts of one swarm's decider share on one node. It is passed by constructor."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.run_log import RunLog
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.counters import Counters
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.ids import NodeId


@dataclass(slots=True)
class SwarmContext:
    """Made once, by the scheduler."""

    node: NodeId  # this node
    run_bytes: Sequence[int]  # length of each run
    states: RunStates  # of our runs
    book: PeerBook  # of our neighbours
    settings: SwarmSettings
    dice: Random  # break ties
    counters: Counters
    log: RunLog  # of what happened to runs
    on: Mechanisms = ALL_ON  # the rules in force

"""The rules of a swarm that the simulator can switch off, to see what each one is worth."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Which rules are in force. Agents have all of them; `p2pcache.sim.ablation` switches some off."""

    # What a node asks: `download`.
    ask_ahead: bool = True  # ask a neighbour that is about to end a run
    rarest: bool = True  # prefer runs with few holders
    near_places: bool = True  # keep places for requests within the rack
    bridge_pass: bool = True  # ask first for what the rack waits for
    idle_peers: bool = True  # ask neighbours that serve nobody, however many requests flow
    stay: bool = True  # ask the neighbour again that has just sent a run
    bridge_review: bool = True  # step in for late bridges
    endgame: bool = True  # ask twice for late runs
    doubt: bool = True  # don't count the claims of neighbours that deliver nothing
    stuck_watch: bool = True  # tell the tracker of runs that don't come

    # What a node serves: `upload`.
    slow_receivers: bool = True  # take no slot for a slow receiver
    recall: bool = True  # tell nodes that heard BUSY that there is room, or that others are served
    quantum: bool = True  # make room for nodes that heard BUSY after some uploads in a row
    next_waits: bool = True  # let the next request of a served peer wait


ALL_ON = Mechanisms()

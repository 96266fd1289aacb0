"""The swarms that the tracker knows of this node: in parts, so that a large cache is announced as well as a small one.

The announcement has the swarms that want runs, and as many others as fit into one message. The rest follow, each in an
`Enter`. A tracker takes a number of swarms from one member. A node that has more tells those that it uses.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from p2pcache.core.protocol import messages as m

if TYPE_CHECKING:
    from p2pcache.agent.tracker_link import TrackerLink

MOST_SWARMS = 4096  # a tracker drops a member that tells of more (that of the release before)
PART_BYTES = 1 << 20  # of a message; a message may have four of these
KNOWN_BYTES = 10  # of one member's id in a message, at most
PAUSE_S = 0.02  # between two parts: other messages go between them


class Told(Protocol):
    """A swarm, as this module uses it (`downloads.driver.SwarmDriver`)."""

    digest: str

    def state(self, *, announcing: bool = False) -> m.SwarmState:
        """This node's state in it."""

    def wants(self) -> bool:
        """Whether this node asks others for runs."""


class ToldSwarms:
    """Which swarms the tracker knows of this node. Each message about a swarm goes through here.

    Invariant: `_told` holds at most `most` swarms, the one that was in use last at the end.
    """

    def __init__(self, link: "TrackerLink | None", most: int = MOST_SWARMS) -> None:
        """Nothing is told yet. `link`: None without a tracker; `most`: what a tracker takes from one member."""
        self._link = link
        self._most = most
        self._told: OrderedDict[str, Told] = OrderedDict()

    def announce(self, swarms: Iterable[Told]) -> tuple[m.SwarmState, ...]:
        """The states for a fresh connection's announcement; `send_rest` sends the others.

        Args:
            swarms: all of this node, in the order in which they should be told.
        """
        self._told.clear()
        states: list[m.SwarmState] = []
        size = 0
        for swarm in _wanted_first(swarms)[: self._most]:
            state = _within(swarm.state(announcing=True), PART_BYTES - size)
            size += _size(state)
            if states and size > PART_BYTES:
                break
            states.append(state)
            self._add_first(swarm)
        return tuple(states)

    async def send_rest(self, swarms: Mapping[str, Told]) -> None:
        """Send the swarms that the announcement had no room for, and those that began after it.

        Args:
            swarms: all of this node, by digest; it may change meanwhile.
        """
        link, size = self._link, 0
        if link is None:
            return
        losses = link.losses
        for digest in [swarm.digest for swarm in _wanted_first(swarms.values())]:
            if size > PART_BYTES:
                size = 0
                await asyncio.sleep(PAUSE_S)
            if not link.connected or link.losses != losses:
                return  # the next announcement has all
            swarm = swarms.get(digest)
            if swarm is None or digest in self._told or len(self._told) >= self._most:
                continue
            self._add_first(swarm)
            state = swarm.state()
            size += _size(state)
            link.send(m.Enter(state))

    def enter(self, swarm: Told) -> None:
        """This node takes part in a swarm."""
        if self._link is not None and self._link.connected and self._has_room_for(swarm):
            self._link.send(m.Enter(swarm.state()))

    def beat(self, swarm: Told, alive: m.Heartbeat) -> None:
        """Tell a swarm's state now, not with the next heartbeat; `alive`: without any.

        One that the tracker doesn't know isn't told: it has made room, or its model has been removed.
        """
        if self._link is not None and self._link.connected and swarm.digest in self._told:
            self._told.move_to_end(swarm.digest)
            self._link.send(msgspec.structs.replace(alive, swarms=(swarm.state(),)))

    def exit(self, digest: str) -> None:
        """This node doesn't serve a model any more."""
        if self._told.pop(digest, None) is not None and self._link is not None:
            self._link.send(m.Exit(digest))

    def active(self, swarms: Iterable[Told]) -> tuple[m.SwarmState, ...]:
        """The states of the swarms that want runs, as many as fit into one message: for a heartbeat."""
        states: list[m.SwarmState] = []
        size = 0
        for swarm in swarms:
            if swarm.wants() and self._has_room_for(swarm):
                state = swarm.state()
                size += _size(state)
                if states and size > PART_BYTES:
                    break
                states.append(state)
        return tuple(states)

    def _add_first(self, swarm: Told) -> None:
        """Note a swarm that isn't in use now, so that it makes room before all that are noted already."""
        self._told[swarm.digest] = swarm
        self._told.move_to_end(swarm.digest, last=False)

    def _has_room_for(self, swarm: Told) -> bool:
        """Whether the tracker may be told of it; the swarm that was told first and wants nothing makes room."""
        if swarm.digest not in self._told and len(self._told) >= self._most:
            idle = next((digest for digest, one in self._told.items() if not one.wants()), None)
            if idle is None:
                return False
            self.exit(idle)
        self._told[swarm.digest] = swarm
        self._told.move_to_end(swarm.digest)
        return True


def _wanted_first(swarms: Iterable[Told]) -> list[Told]:
    return sorted(swarms, key=lambda swarm: not swarm.wants())


def _size(state: m.SwarmState) -> int:
    """Bytes of a state in a message, or a little more."""
    texts = len(state.digest) + 4 * len(state.label) + len(state.have) + len(state.wanted)
    return 128 + texts + KNOWN_BYTES * (len(state.known) + len(state.leases))


def _within(state: m.SwarmState, most: int) -> m.SwarmState:
    """The state with as few known members as the size demands."""
    over = _size(state) - most
    if over <= 0:
        return state
    kept = max(0, len(state.known) - over // KNOWN_BYTES - 1)
    return msgspec.structs.replace(state, known=state.known[:kept])

"""Racks and sites: which runs this node may bring across a boundary, so that one copy crosses it. Pure.

A run that the own rack lacks is fetched by one member of it, who has its seat (`seats`), and spreads
inside from there; the others wait for it. When it brings far less than the other bridges, the next in order
step in: first the second, then four, eight, sixteen, at last everybody. (Who steps in because a thin uplink
is slow for all makes it slower: when time alone decided, 1.8 copies crossed a busy one.) A site is crossed by
the same rule among all its nodes. Nobody is told anything: who holds the same list comes to the same order.
"""

from collections.abc import Sequence

from p2pcache.core.racks import bridge_slots
from p2pcache.core.racks.bridge_slots import SEATS

_STEPS = SEATS.bit_length()  # looks at which a run of a late bridge waits until all may fetch it
# Below this part of what the median bridge brings of that which waited, others step in, ...
_LATE_RATIO = 0.3
# ... if it is behind the others, too: more than a few runs beyond so many times what most of them owe, or one
# run for two looks. (One that had brought the one run that it owed, while others brought four, was called late,
# and so was one that was late with a single run: on real uplinks that made 1.03 to 1.1 copies out of one, and on
# a full one, where those who stepped in made everybody slower, 1.15 and half a copy more that was cancelled.)
_BEHIND = 2
_FEW = 2
_STUCK = 2
_SILENT = 6  # ... or for so many, if most others bring nothing either: then it is the uplink
_PAROLE = 8  # looks for which the second in order does the work of a bridge that was late
_LONG = 16  # looks at which a run waits until all may fetch it, whatever else its bridge brings
_ALL = -1  # as bits

Reach = tuple[int, int, int]
"""Per distance (0: own rack, 1: own site, 2: elsewhere) the runs (bits) that may be asked for there."""

EVERYWHERE: Reach = (_ALL, _ALL, _ALL)
WITHIN: Reach = (_ALL, 0, 0)


class Boundaries:
    """Where the other nodes are, and what may be brought from there.

    Invariants: `_open[d]` is what may be brought from distance d if nobody nearer has it; while
    `active` is false everybody is near, and all of it may.
    """

    def __init__(self, node: int, run_count: int) -> None:
        self.active = False
        self._node = node
        self._repeat = _repeated(run_count)
        self._rack: frozenset[int] = frozenset()
        self._site: frozenset[int] = frozenset()
        # Per distance: runs whose first 1, 2, 4 ... we are of, and runs that waited for 1, 2, 3 ... looks.
        self._duty: list[list[int]] = [[], [], []]
        self._waited: list[list[int]] = [[], [], []]
        self._long: list[list[int]] = [[], [], []]  # ... and for so many, brought others or not
        self._starved = [0, 0, 0]  # runs that waited when nothing else came any more
        self._shares: list[list[int]] = [[], [], []]  # what each bridge is there for
        self._paroles: list[dict[int, int]] = [
            {},
            {},
            {},
        ]  # shares of late bridges: for how many looks
        self._open = [_ALL, _ALL, _ALL]

    def told(self, nodes: Sequence[int], rack: tuple[int, ...], site: tuple[int, ...]) -> None:
        """The member list, and who of them shares our rack and our site; nobody: no labels are known."""
        ours: frozenset[int] = frozenset(rack)
        active = bool(rack) and not ours.issuperset(nodes)
        # Without boundaries nobody asks who they are, and a site may be 10,000.
        groups = (ours, frozenset(site)) if active else (frozenset[int](), frozenset[int]())
        if active == self.active and groups == (self._rack, self._site):
            return
        self.active, (self._rack, self._site) = active, groups
        for distance, group in ((1, rack), (2, site)):
            orders = bridge_slots.order(group) if self.active else ()
            self._paroles[distance] = {}
            bridges = {first: None for first, *_ in orders}
            self._shares[distance] = [self._share(orders, node, 1) for node in bridges]
            self._duty[distance] = [
                self._share(orders, self._node, 1 << step) for step in range(_STEPS)
            ]
            self._reopen(distance)

    def distance(self, node: int) -> int:
        """0: in our rack, 1: in our site, 2: elsewhere."""
        if not self.active or node in self._rack:
            return 0
        return 1 if node in self._site else 2

    def reach(self, in_rack: int, in_site: int) -> Reach:
        """What may be asked for at each distance.

        Args:
            in_rack: runs (bits) that somebody fit has in our rack.
            in_site: and in our site.
        """
        if not self.active:
            return EVERYWHERE
        return _ALL, self._open[1] & ~in_rack, self._open[2] & ~in_site

    def look(self, beyond_rack: int, beyond_site: int, *, starved: bool = False) -> None:
        """Once in a while: what waited since the last look may be fetched by more of us.

        Args:
            beyond_rack: needed runs (bits) that somebody fit in our site has, and nobody in our rack.
            beyond_site: that somebody elsewhere has, and nobody in our site.
            starved: nothing has come for long: perhaps no bridge wants these runs, or none gets at who has them.
        """
        for distance, runs in ((1, beyond_rack), (2, beyond_site)):
            self._starved[distance] = runs if starved else runs & self._starved[distance]
            long = [runs, *(step & runs for step in self._long[distance])][:_LONG]
            ages = runs & self._late(distance, self._long[distance], runs)
            steps = [runs, *(step & ages for step in self._waited[distance])]
            self._waited[distance], self._long[distance] = steps[: _STEPS + 1], long
            self._reopen(distance)

    def _late(self, distance: int, before: list[int], runs: int) -> int:
        """Runs (bits) of bridges that bring far less than the others: the rest only queues."""
        waited = before[0] if before else 0
        parts = {
            share: (waited & ~runs & share).bit_count() / (waited & share).bit_count()
            for share in self._shares[distance] if waited & share
        }  # fmt: skip
        limit = _LATE_RATIO * sorted(parts.values())[len(parts) // 2] if parts else 0.0
        looks = _SILENT if len(parts) > 1 and not limit else _STUCK
        stuck = before[looks - 1] & runs if len(before) >= looks else 0
        patience = self._patience(distance, runs)
        paroles = {
            share: looks - 1 for share, looks in self._paroles[distance].items() if looks > 1
        }
        late = {
            share: _PAROLE for share, part in parts.items()
            if part <= limit and (stuck & share or (runs & share).bit_count() >= patience)
        }  # fmt: skip
        self._paroles[distance] = paroles | late
        return sum(self._paroles[distance])

    def _patience(self, distance: int, runs: int) -> int:
        """How many runs a bridge may owe before it is behind the others."""
        owed = sorted((runs & share).bit_count() for share in self._shares[distance])
        return _BEHIND * owed[(len(owed) - 1) // 2] + _FEW if owed else 0

    def _reopen(self, distance: int) -> None:
        duty = self._duty[distance]
        runs = duty[0] | duty[1] & sum(self._paroles[distance]) | self._starved[distance]
        for step, waited in enumerate(self._waited[distance]):
            # What was seen waiting once only may have begun to a moment ago: nothing but our duty.
            runs |= waited & duty[step] if step < _STEPS else waited
        if len(self._long[distance]) == _LONG:
            runs |= self._long[distance][-1]
        self._open[distance] = runs if self.active else _ALL

    def _share(self, orders: Sequence[tuple[int, ...]], node: int, first: int) -> int:
        """Runs (bits) of which a node is among the `first` that may fetch them."""
        return (
            sum(1 << seat for seat, one in enumerate(orders) if node in one[:first]) * self._repeat
        )


def _repeated(run_count: int) -> int:
    """What turns a set of seats into a set of (at least all) runs by multiplication."""
    return sum(1 << start for start in range(0, run_count, SEATS))

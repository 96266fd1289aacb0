"""A part of a swarm that is cut off from the rest: the tracker has more runs read for it each time."""

from p2pcache.core import bitset
from p2pcache.core.coordinator.settings import MOST_AGAIN
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import SwarmSettings
from tests.core.coordinator.tracking_kit import World, X

OTHERS = (1, 3, 4)  # they have it all; node 2 can't get at them


class Part:
    """Node 2, which says that it is stuck and reads what it may."""

    def __init__(self, runs: int = 1000) -> None:
        self.world = World()
        self.runs = runs
        self.lacks = bitset.full(runs)
        for node in (*OTHERS, 2):
            self.world.announce(node)
        for node in OTHERS:
            self.world.say(node, m.Enter(m.SwarmState(X, runs, b"", complete=True, credit=0)))
        self.enter()

    def enter(self) -> None:
        have = bitset.to_bytes(bitset.full(self.runs) & ~self.lacks, self.runs)
        self.world.say(2, m.Enter(m.SwarmState(X, self.runs, have, credit=self.runs)))

    def say(self) -> None:
        first = bitset.members(bitset.lowest(self.lacks, m.MAX_STUCK))
        self.world.say(2, m.Stuck(X, tuple(first), bitset.to_bytes(self.lacks, self.runs)))

    def wait(self, seconds: float = SwarmSettings().stuck_after_s + 0.1) -> None:
        self.world.wait(seconds, alive=(*OTHERS, 2))

    def granted(self) -> list[int]:
        runs = self.world.granted(2)
        self.world.forget_mail()
        return runs

    def read(self) -> int:
        """It reads all its leases; returns how many runs that were."""
        count = 0
        while runs := self.granted():
            self.world.done(2, *runs)
            self.lacks &= ~bitset.of(runs)
            count += len(runs)
        return count

    def steps(self, count: int) -> list[int]:
        """How many runs it reads between each two notices."""
        read = []
        for _ in range(count):
            self.say()
            self.wait()
            read.append(self.read())
        return read


def test_it_gets_more_each_time() -> None:
    """Otherwise a rack behind a firewall gets 32 runs in twelve seconds: half an hour for 140 GB."""
    part = Part()
    assert part.steps(5) == [0, 32, 128, 512, 328]
    assert not part.lacks


def test_but_never_so_much_that_the_tracker_is_held_up() -> None:
    part = Part(runs=20_000)
    assert part.steps(8)[4:] == [2048, MOST_AGAIN, MOST_AGAIN, MOST_AGAIN]


def test_notices_while_it_reads_free_nothing() -> None:
    part = Part()
    assert part.steps(2) == [0, 32]
    part.say()
    book = part.world.tracking.swarms[X].book
    assert part.granted()
    assert book.regranted == 32 + 128
    for _ in range(3):
        part.wait()
        part.say()
    assert book.regranted == 32 + 128


def test_after_a_while_it_is_introduced_anew() -> None:
    """Somebody may have mended it: runs of others aren't read again on a suspicion a minute old."""
    part = Part()
    part.steps(2)
    part.wait(VERDICT_S + 1)
    part.world.forget_mail()
    part.say()
    assert part.world.got(2, m.Swarm)
    assert part.read() == 0
    part.wait()
    part.say()
    assert part.read() == m.MAX_STUCK


def test_a_member_that_left_and_comes_back_is_introduced_anew() -> None:
    part = Part()
    part.steps(2)
    part.world.say(2, m.Exit(X))
    part.enter()
    part.world.forget_mail()
    part.say()
    assert part.world.got(2, m.Swarm)
    assert part.read() == 0


def test_it_is_told_of_for_a_whole_day() -> None:
    """The number of runs that are read for it grows each time, but not without end."""
    part = Part(runs=64)
    part.steps(3)
    for _ in range(40):
        part.lacks = bitset.full(64)  # its disk forgets all, again and again
        part.enter()
        part.steps(1)
    assert part.world.tracking.swarms[X].roster.members[2].read_again <= MOST_AGAIN

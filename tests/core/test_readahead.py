"""A root reads no further ahead than those below it take."""

from p2pcache.core import chunkset
from p2pcache.core.commands import Fetch
from p2pcache.core.events import (
    FetchEnded,
    HandedOn,
    LeaseGranted,
    Members,
    Outcome,
    PeerJoined,
    Supplied,
)
from p2pcache.core.forest import STRIPES
from p2pcache.core.readahead import MOST, PATIENCE_S, ReadAhead
from tests.core.scheduler_kit import Desk, of

ROOTS = (1, 22, 33, 44)
MINE = [STRIPES * number for number in range(20)]  # runs of the first stripe
OTHERS = [run + 1 for run in MINE]


def desk(roots: tuple[int, ...]) -> Desk:
    desk = Desk(runs=STRIPES * len(MINE))
    desk.up()
    desk.do(Members((1, 11, *ROOTS[1:])))
    desk.do(PeerJoined(11, 0))
    desk.do(Supplied((0, 22, 33, 44), roots))
    return desk


def read(desk: Desk, *runs: int) -> list[int]:
    """These are granted one after the other; which of them are read, each at once."""
    begun: list[int] = []
    for run in runs:
        for fetch in of(Fetch, desk.do(LeaseGranted(1 << run, 5))):
            begun.append(fetch.run)
            desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    return begun


def test_a_root_reads_on_when_what_it_read_was_handed_on() -> None:
    """Storage sixteen times as quick as links, 250 simulated nodes: 0.819 of the bound, now 0.954."""
    root = desk(ROOTS)
    assert root.s.is_root
    assert read(root, *MINE) == MINE[:MOST]
    begun = of(Fetch, root.do(HandedOn(1 << MINE[0])))
    assert [fetch.run for fetch in begun] == MINE[MOST : MOST + len(begun)] != []


def test_who_is_no_root_reads_what_it_may() -> None:
    assert read(desk(()), *MINE) == MINE


def test_a_root_that_nobody_asks_reads_on_after_a_while() -> None:
    root = desk(ROOTS)
    assert read(root, *MINE) == MINE[:MOST]
    assert not of(Fetch, root.sleep(PATIENCE_S - 0.1))
    assert of(Fetch, root.sleep(0.2))[0].run == MINE[MOST]


def test_what_it_reads_for_others_stripes_is_not_counted() -> None:
    root = desk(ROOTS)
    assert read(root, *OTHERS) == OTHERS


def test_it_waits_once_for_what_nobody_asks_for() -> None:
    root = desk(ROOTS)
    read(root, *MINE)
    begun = of(Fetch, root.sleep(PATIENCE_S + 0.1))
    assert len(begun) > 1
    assert not root.s._origin.ahead.kept, "all that it had read before"


def test_a_later_run_is_handed_on_after_the_earlier_ones() -> None:
    ahead = ReadAhead()
    ahead.read(chunkset.full(MOST), 1.0)
    assert ahead.until == 1.0 + PATIENCE_S
    assert not ahead.may_read(1.0)
    ahead.handed_on(1 << MOST - 2)
    assert ahead.kept == 1 << MOST - 1, "whoever lacked those before it had them elsewhere"
    assert ahead.may_read(1.0)


def test_what_was_handed_on_twice_counts_once() -> None:
    ahead = ReadAhead()
    ahead.read(chunkset.full(MOST), 1.0)
    for _ in range(2):
        ahead.handed_on(1)
    assert ahead.until == 0.0
    ahead.read(0, 5.0)
    assert ahead.until == 0.0
    ahead.read(1 << MOST, 6.0)
    assert ahead.until == 6.0 + PATIENCE_S
    assert not ahead.may_read(6.0)
    assert ahead.may_read(6.0 + PATIENCE_S)
    assert not ahead.kept

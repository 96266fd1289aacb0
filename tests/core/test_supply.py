"""Suppliers on a node: what is left to them, what is late, and what others may be asked for."""

from p2pcache.core import chunkset
from p2pcache.core.commands import Announce, Dial, Fetch, Request
from p2pcache.core.events import (
    Demanded,
    LeaseGranted,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    RunsProved,
    Source,
    Supplied,
    TrackerDown,
    TrackerUp,
)
from p2pcache.core.forest import STRIPES, stripes
from p2pcache.core.uploads import Turn
from tests.core.scheduler_kit import Desk, of

ABOVE = (11, 12, 13, 14)  # our suppliers, by stripe
OTHERS = (21, 22, 23)
RUNS = 400


def desk(have: int = 0) -> Desk:
    """A node that has these runs, with four suppliers and three other neighbours that have nothing yet."""
    desk = Desk(runs=RUNS, have=have)
    desk.up()
    desk.do(Members((1, *ABOVE, *OTHERS, *range(100, 109))))
    desk.do(Supplied(ABOVE, (11, 22, 33, 44)))
    for peer in (*ABOVE, *OTHERS):
        desk.do(PeerJoined(peer, 0))
    return desk


def asked(desk: Desk, peer: int, *runs: int) -> list[tuple[int, int]]:
    """A neighbour has these runs: what is asked of whom then."""
    out = desk.do(PeerHas(peer, chunkset.of(runs), 0))
    return [(r.peer, r.run) for r in of(Request, out)]


def test_suppliers_that_we_do_not_know_are_dialled() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(12, 0))
    assert of(Dial, desk.do(Supplied(ABOVE))) == [Dial(11), Dial(13), Dial(14)]


def test_what_a_supplier_has_is_asked_of_it_at_once_and_urgently() -> None:
    out = desk().do(PeerHas(12, 1 << 1 | 1 << 5, 0))
    assert of(Request, out) == [Request(1, 12, 1, Turn.SUPPLIED), Request(2, 12, 5, Turn.SUPPLIED)]


def test_no_more_than_two_wait_at_a_supplier() -> None:
    d = desk()
    assert asked(d, 12, 1, 5, 9, 13) == [(12, 1), (12, 5)]
    out = d.do(RequestEnded(1, Outcome.DONE))
    assert [(r.peer, r.run) for r in of(Request, out)] == [(12, 9)]


def test_what_is_new_is_left_to_its_supplier() -> None:
    d = desk()
    assert asked(d, 21, 0, 1, 2, 3) == []
    assert asked(d, 12, 2) == [], "nor is it the supplier of all stripes"
    assert asked(d, 11, 0) == [(11, 0)]


def test_what_has_no_supplier_may_come_from_anybody() -> None:
    d = desk()
    d.do(Supplied((0, *ABOVE[1:])))
    assert asked(d, 21, 0, 1) == [(21, 0)]
    d.do(PeerLeft(12))
    assert asked(d, 22, 1) == [(22, 1)]


def test_what_is_behind_many_newer_ones_is_late() -> None:
    d = desk()
    assert asked(d, 21, *range(60)) == []
    late = of(Request, d.sleep(0.3))
    assert [r.run < 40 and r.peer == 21 for r in late] == [True], "one at a time of one neighbour"


def test_the_last_ones_are_late_when_nothing_newer_comes() -> None:
    d = desk()
    assert asked(d, 21, 0) + asked(d, 22, 1) == []
    assert {(r.peer, r.run) for r in of(Request, d.sleep(5.0))} == {(21, 0), (22, 1)}


def test_when_the_last_run_is_about_and_few_are_missing_anybody_may_bring_them() -> None:
    few = range(RUNS - 4, RUNS)
    d = desk(have=chunkset.full(RUNS - 5))
    assert asked(d, 21, *few) == [], "one more is missing, and suppliers bring them in order"
    d.do(RunsProved(1 << RUNS - 5, Source.LOCAL))
    ways = asked(d, 22, RUNS - 1)
    assert [peer for peer, _ in ways] == [22, 21], "who has handed them on is idle, wherever"
    assert {run for _, run in ways} <= set(few)


def test_at_the_end_what_others_have_had_for_some_news_is_late() -> None:
    d = desk(have=chunkset.full(RUNS - 40))
    lagging = RUNS - 36
    assert asked(d, 21, lagging) == []
    for run in range(RUNS - 8, RUNS - 4):
        assert asked(d, 22, run) + asked(d, 23, run) == [], "it still comes in order"
    assert asked(d, 22, RUNS - 4) + asked(d, 23, RUNS - 4) == [(23, RUNS - 8), (21, lagging)]


def test_a_supplier_that_lags_is_not_waited_for() -> None:
    d = desk()
    for first in range(0, 120, 20):
        for peer, stripe in zip(ABOVE[1:], (1, 2, 3), strict=True):
            asked(d, peer, *(first + 4 * k + stripe for k in range(5)))
        d.do(PeerHas(21, chunkset.of(range(first, first + 20)), 0))
        d.sleep(0.3)
    stripe_0 = stripes(RUNS)[0]
    before = {r.run for r in of(Request, d.out)}
    assert before & {*chunkset.members(stripe_0)}, "late ones"
    for request in [r for r in of(Request, d.out) if r.peer == 21]:
        d.do(RequestEnded(request.request, Outcome.DONE))
        break
    d.sleep(0.3)
    assert not d.s._peers.supply.reserved & stripe_0
    d.do(PeerHas(11, 1 << 120, 0))
    assert d.s._peers.supply.reserved & stripe_0, "it brings what is new again"


def test_what_a_loader_waits_for_may_come_from_anybody() -> None:
    d = desk()
    assert asked(d, 21, 8, 9) == []
    assert [(r.peer, r.run) for r in of(Request, d.do(Demanded(1 << 9)))] == [(21, 9)]


def test_beside_suppliers_nothing_is_asked_for_that_would_take_from_them() -> None:
    d = desk()
    for stripe, peer in enumerate(ABOVE):
        assert asked(d, peer, 200 + stripe) == [(peer, 200 + stripe)]
    assert asked(d, 21, *range(60)) == []
    d.sleep(0.5)
    assert [r.peer for r in of(Request, d.out)] == list(ABOVE)


def busy_with_new_runs() -> Desk:
    """All suppliers bring something new, which takes long."""
    d = desk()
    for stripe, peer in enumerate(ABOVE):
        asked(d, peer, 200 + stripe)
    return d


def test_what_one_neighbour_alone_has_for_long_is_asked_for_beside_all_else() -> None:
    """300 simulated nodes: a dozen runs that were read before there were trees were with one node each to the end."""
    d = busy_with_new_runs()
    assert asked(d, 21, 7, 8) == []
    early = d.sleep(2.0)
    assert not of(Request, early)
    late = of(Request, d.sleep(1.0))
    assert late == [Request(5, 21, 7, Turn.URGENT)], (
        "one at a time; it serves others, who come first"
    )
    assert not of(Request, d.sleep(0.5))
    out = d.do(RequestEnded(5, Outcome.DONE)) + d.sleep(0.5)
    assert [(r.peer, r.run, r.turn) for r in of(Request, out)] == [(21, 8, Turn.URGENT)]


def test_what_several_have_is_not_rare() -> None:
    d = busy_with_new_runs()
    assert asked(d, 21, 7, 8) + asked(d, 22, 7, 8) == []
    assert not of(Request, d.sleep(3.0))


def test_at_the_end_nothing_is_rare() -> None:
    """Everything is asked for then anyway, and looks follow one another too soon to tell what is old."""
    d = busy_with_new_runs()
    assert asked(d, 21, 7, RUNS - 1) == []
    assert not any(r.turn is Turn.URGENT and r.run == 7 for r in of(Request, d.sleep(3.0)))


def test_who_is_supplied_hears_at_once_and_the_others_in_batches() -> None:
    d = desk()
    (one,) = of(Request, d.do(PeerHas(11, 1, 0)))
    out = d.do(RequestEnded(one.request, Outcome.DONE))
    assert of(Announce, out) == [Announce(1), Announce(1, supplied=True)]
    (two,) = of(Request, d.do(PeerHas(11, 1 << 4, 0)))
    d.now += 0.008
    out = d.do(RequestEnded(two.request, Outcome.DONE))
    assert of(Announce, out) == [Announce(1 << 4, supplied=True)]
    assert of(Announce, d.sleep(0.02)) == [Announce(1 << 4)]


def test_another_tracker_says_anew_who_supplies_us() -> None:
    d = desk()
    d.do(TrackerDown())
    assert d.s.usual_uploads == STRIPES, "they go on"
    d.do(TrackerUp(6))
    assert d.s.usual_uploads is None


def test_who_supplies_others_keeps_their_places() -> None:
    assert desk().s.usual_uploads == STRIPES


def test_a_list_of_another_length_is_none() -> None:
    d = desk()
    d.do(Supplied((11, 12)))
    assert d.s._peers.supply.suppliers == ()


def test_without_a_tracker_the_roots_read_each_its_stripe() -> None:
    d = Desk(runs=RUNS)
    d.up()
    d.do(Members((1, *ABOVE, *OTHERS)))
    d.do(Supplied((0, *ABOVE[1:]), (1, 12, 13, 14)))
    for peer in (*ABOVE, *OTHERS):
        d.do(PeerJoined(peer, 0))
    d.do(LeaseGranted(1, 5))
    d.do(TrackerDown())
    d.sleep(1.0)
    read = [f.run for f in of(Fetch, d.out)]
    assert read[:3] == [0, 4, 8], "at once: what was granted in its stripe was granted to it"
    assert all(run % STRIPES == 0 for run in read)


def test_who_is_no_root_leaves_it_to_them() -> None:
    d = desk()
    d.do(Supplied(ABOVE, ABOVE))
    d.do(TrackerDown())
    d.sleep(5.0)
    assert not of(Fetch, d.out)

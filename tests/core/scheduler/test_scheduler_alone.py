"""Without a tracker the owner of a run reads it, and the others wait."""

import itertools

import pytest

from p2pcache.core import bitset
from p2pcache.core.origin.settings import (
    MIN_SHARE,
)
from p2pcache.core.rendezvous import order
from p2pcache.core.swarm.commands import (
    Dial,
    Fetch,
    LeaseReport,
    OriginCorrupt,
)
from p2pcache.core.swarm.events import (
    DialFailed,
    FetchEnded,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    Tick,
    TrackerDown,
    TrackerUp,
)
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, bring, of, of_three, read_all


def test_no_tracker_configured_reads_everything_in_order() -> None:
    desk = Desk(runs=30, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    assert [f.run for f in fetches] == list(range(SETTINGS.origin_fetches))
    while fetches:
        fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
    assert desk.s.complete


def test_a_new_scheduler_without_a_tracker_asks_for_a_tick_at_once() -> None:
    desk = Desk(runs=30, tracker=False)
    assert desk.s.next_wakeup() == desk.now


def test_a_tracker_that_never_came_is_no_reason_to_read() -> None:
    desk = Desk(runs=30)
    assert of(Fetch, desk.sleep(600)) == []


def test_a_tracker_that_never_came_leaves_the_owners_of_the_last_known_list() -> None:
    desk = Desk(runs=8)
    desk.do(Members((1, 2, 3)))
    mine = [run for run in range(8) if order(run, (1, 2, 3))[0] == 1]
    assert not of(Fetch, desk.sleep(SETTINGS.lease_ttl_s))
    out = desk.sleep(SETTINGS.fallback_grace_s + SETTINGS.stuck_after_s + 1)
    assert [f.run for f in of(Fetch, out)] == mine[: len(of(Fetch, out))] != []
    assert {d.peer for d in of(Dial, out)} == {2, 3}
    desk.do(DialFailed(2))
    desk.do(DialFailed(3))
    for _ in range(8):
        for fetch in of(Fetch, desk.out):
            desk.out.remove(fetch)
            desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    assert desk.s.complete, "no other node can be reached, so this one reads alone"


def lose_tracker(runs: int, held: int) -> Desk:
    """A node that is connected to two others and loses its tracker when the first `held` runs are at a neighbour."""
    desk = of_three(runs)
    desk.do(PeerHas(2, bitset.full(held), 0))
    desk.do(TrackerDown())
    return desk


def test_a_run_that_its_owner_does_not_bring_holds_nobody_up() -> None:
    desk = lose_tracker(runs=300, held=10)
    owner = {run: order(run, (1, 2, 3))[0] for run in range(10, 300)}
    stuck = min(run for run, node in owner.items() if node != 1)
    theirs = {run for run, node in owner.items() if node != 1 and run != stuck}
    desk.sleep(0.7)
    desk.do(PeerHas(2, bitset.of(theirs), 0))
    read = read_all(desk, of(Fetch, desk.out))
    assert read == owner.keys() - theirs - {stuck}


def test_without_the_tracker_an_owner_reads_the_rest_when_nobody_came_to_have_it() -> None:
    desk = lose_tracker(runs=24, held=0)
    mine = {run for run in range(24) if order(run, (1, 2, 3))[0] == 1}
    assert read_all(desk, of(Fetch, desk.sleep(1.0))) == mine
    assert of(Dial, desk.out) == []


def test_a_tracker_that_is_back_at_once_was_not_lost() -> None:
    desk = lose_tracker(runs=200, held=10)
    assert of(Fetch, desk.sleep(0.4)) == []
    desk.up()
    assert of(Fetch, desk.sleep(60)) == []


def test_the_tracker_is_back_and_nothing_more_is_read_without_it() -> None:
    desk = Desk(runs=32)
    desk.do(Members((1,)))
    desk.up()
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(30))
    assert fetches
    desk.do(TrackerUp(6))
    assert desk.s.origin_runs == bitset.of(f.run for f in fetches)
    for f in fetches:
        out = desk.do(FetchEnded(f.fetch, Outcome.DONE))
        assert of(LeaseReport, out) == [LeaseReport(done=1 << f.run)]
        assert of(Fetch, out) == []


def test_dead_owners_are_passed_over_at_once() -> None:
    desk = of_three(runs=32)
    desk.do(TrackerDown())
    for node in (2, 3):
        desk.do(PeerLeft(node))
    fetches = of(Fetch, desk.sleep(25))
    for _ in range(200):
        if fetches:
            fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
        for dial in of(Dial, desk.out):
            desk.out.remove(dial)
            fetches += of(Fetch, desk.do(DialFailed(dial.peer)))
    assert desk.s.complete


def test_a_silent_owner_is_overtaken_after_patience() -> None:
    nodes = (1, 2)
    theirs = {run for run in range(32) if order(run, nodes)[0] == 2}
    desk = Desk(runs=32)
    desk.do(Members(nodes))
    desk.up()
    desk.do(PeerJoined(2, 0))
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(1))
    while fetches:
        fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
    late = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + 3))
    assert late
    assert {f.run for f in late} <= theirs


def test_a_pause_before_the_first_reads_says_nothing_of_how_slow_storage_is() -> None:
    """Until owners may read nothing comes. With that as the pace, silent ones were waited for over four minutes."""
    by_itself = lose_tracker(runs=100, held=2).s._by_itself
    by_itself._pace.least_mean_s = 15.0
    by_itself.on_read_done(0.5)
    assert by_itself._patience_s(20, 0.0) == pytest.approx(20.0)


def test_no_owner_is_idle_while_our_own_reads_do_not_end() -> None:
    """While storage is silent, nobody may pass over all other owners and read everything."""
    desk = lose_tracker(runs=24, held=0)
    mine = {run for run in range(24) if order(run, (1, 2, 3))[0] == 1}
    fetches = of(Fetch, desk.sleep(10 * SETTINGS.owner_patience_s))
    assert read_all(desk, fetches) == mine


def test_a_silent_owner_of_a_model_of_three_runs_is_overtaken_too() -> None:
    nodes = next(
        pair for n in range(2, 99) if all(order(r, pair := (1, n))[0] == n for r in range(3))
    )
    desk = Desk(runs=3)
    desk.do(Members(nodes))
    desk.up()
    desk.do(PeerJoined(nodes[1], 0))
    desk.do(TrackerDown())
    overtaken = of(Fetch, desk.sleep(4 * SETTINGS.owner_patience_s))
    assert read_all(desk, overtaken) == {0, 1, 2}


def test_a_corrupt_origin_is_found_out_without_a_tracker() -> None:
    desk = Desk(runs=1, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    for _ in range(2):
        desk.do(FetchEnded(fetches.pop().fetch, Outcome.MISMATCH))
        fetches += of(Fetch, desk.sleep(120))
    assert fetches == [], "a node reads a run of a corrupt origin twice at most"
    assert of(OriginCorrupt, desk.out) == [OriginCorrupt(0)]


def test_an_origin_that_fails_is_left_in_peace_longer_and_longer() -> None:
    desk = Desk(runs=1, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    starts = [desk.now]
    for _ in range(4):
        desk.do(FetchEnded(fetches.pop().fetch, Outcome.UNAVAILABLE))
        while not fetches:
            fetches += of(Fetch, desk.sleep(0.1))
        starts.append(desk.now)
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps[-1] > 2 * gaps[0] > 0.5


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.MISMATCH])
def test_reads_that_fail_together_are_one_failure(outcome: Outcome) -> None:
    desk = Desk(runs=8, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    assert len(fetches) > 4
    for fetch in fetches:
        desk.do(FetchEnded(fetch.fetch, outcome))
    assert of(Fetch, desk.sleep(2)), "eight parallel reads that fail count as one failure"


def test_a_cut_off_node_does_not_wait_for_leases_of_the_lost_tracker() -> None:
    """A node whose network is cut before anything came knows no pace, and must not wait for long."""
    desk = Desk(runs=24)
    desk.do(Members((1, 2, 3)))
    desk.up()
    desk.sleep(15)
    desk.do(TrackerDown())
    for node in (2, 3):
        desk.do(DialFailed(node))
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []
    assert read_all(desk, of(Fetch, desk.sleep(0.2))) == set(range(24))


def test_a_pull_that_begins_without_its_tracker_begins_soon() -> None:
    """All nodes are known, and none of them takes part: so nothing was granted."""
    desk = Desk(runs=8)
    desk.do(Members((1, 2, 3)))
    desk.do(TrackerDown(unheard=True))
    for node in (2, 3):
        desk.do(DialFailed(node))
    assert of(Fetch, desk.out) == [], "the others are asked first"
    first = of(Fetch, desk.sleep(1.0))
    assert len(first) == MIN_SHARE, "eight reads at once would all end late"
    assert read_all(desk, first) == set(range(8))


def test_the_first_run_does_not_wait_for_answers_of_owners() -> None:
    """Their answers stand behind runs of other models on the same connections, for as long as these take."""
    nodes = tuple(range(1, 9))
    theirs = [run for run in range(2) if order(run, nodes)[0] != 1]
    assert theirs == [0, 1], "else this tells nothing"
    desk = Desk(runs=2)
    desk.do(Members(nodes))
    desk.do(TrackerDown(unheard=True))
    first = of(Fetch, desk.sleep(1.0))
    assert [fetch.run for fetch in first] == [0]
    assert of(Fetch, desk.do(FetchEnded(first[0].fetch, Outcome.DONE))) == []
    assert of(Fetch, desk.sleep(1.0)) == [], "the others still may take part"
    out = [each for node in nodes[1:] for each in desk.do(DialFailed(node))]
    assert [fetch.run for fetch in of(Fetch, out)] == [1]


def test_the_first_run_is_left_to_an_owner_that_takes_part() -> None:
    nodes = tuple(range(1, 9))
    desk = Desk(runs=2)
    desk.do(Members(nodes))
    desk.do(TrackerDown(unheard=True))
    desk.do(PeerJoined(order(0, nodes)[0], 0, 0.0))
    assert of(Fetch, desk.sleep(1.0)) == []


def test_pulls_that_begin_without_their_tracker_share_the_reads() -> None:
    """One begins a little later than the other: it left the runs below to readers that there weren't."""
    desk = Desk(runs=12)
    desk.do(Members((1, 2)))
    desk.do(TrackerDown(unheard=True))
    desk.do(PeerJoined(2, 0b11, 0.0))
    own = {run for run in range(2, 12) if order(run, (1, 2))[0] == 1}
    assert read_all(desk, of(Fetch, desk.sleep(1.0))) == own


def refused(desk: Desk) -> None:
    """Let storage refuse every read for half a minute."""
    end = desk.now + 30
    pause_s = SETTINGS.owner_patience_s
    while desk.now < end:
        for fetch in of(Fetch, desk.sleep(pause_s)):
            desk.do(FetchEnded(fetch.fetch, Outcome.UNAVAILABLE))
        pause_s = 1


def test_owners_are_not_idle_because_storage_was_away() -> None:
    """If owners counted as idle, each node would read everything once storage is back."""
    desk = of_three(runs=40)
    bring(desk, 2, range(10), pace_s=0.1)
    desk.do(TrackerDown())
    refused(desk)
    mine = {run for run in range(10, 40) if order(run, (1, 2, 3))[0] == 1}
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s))
    assert {fetch.run for fetch in fetches} <= mine
    assert read_all(desk, fetches) == mine


def test_a_neighbour_that_read_something_says_that_storage_is_back() -> None:
    desk = lose_tracker(runs=40, held=0)
    refused(desk)
    theirs = next(run for run in range(40) if order(run, (1, 2, 3))[0] == 2)
    assert of(Fetch, desk.sleep(1)) == [], "the pause doubles with each failure"
    assert of(Fetch, desk.do(PeerHas(2, 1 << theirs, 0)))


def dials_that_time_out(desk: Desk, seconds: float, dial_s: float) -> tuple[float | None, int]:
    """Let time pass while no dial is answered; when the first read began, and how many members were dialled."""
    under_way = [(desk.now + dial_s, dial.peer) for dial in of(Dial, desk.out)]
    dialled, began = len(under_way), desk.now
    read_at = None
    while desk.now < began + seconds:
        fresh = desk.sleep(0.25)
        for at, node in [one for one in under_way if one[0] <= desk.now]:
            under_way.remove((at, node))
            fresh += desk.do(DialFailed(node))
        under_way += [(desk.now + dial_s, dial.peer) for dial in of(Dial, fresh)]
        dialled += len(of(Dial, fresh))
        if read_at is None and of(Fetch, fresh):
            read_at = desk.now - began
    return read_at, dialled


def test_a_list_of_members_that_are_long_gone_does_not_end_a_pull() -> None:
    """Packets to them are swallowed, so each dial lasts until its time is over."""
    desk = Desk(runs=5)
    desk.do(Members((1, *range(1000, 1400))))
    read_at, dialled = dials_that_time_out(desk, 60, dial_s=10.0)
    assert read_at is not None
    assert read_at < 45
    assert dialled < 60, "it must not look like a port scan"

"""Without a tracker the owner of a run reads it, and the others wait."""

import itertools

import pytest

from p2pcache.core import bitset
from p2pcache.core.origin.settings import (
    FILL_A_LINK,
    JOIN_BYTES,
    JOIN_SHARE,
    MIN_SHARE,
    PATIENCE_RATIO,
)
from p2pcache.core.rendezvous import order
from p2pcache.core.swarm.commands import (
    Dial,
    Fetch,
    LeaseReport,
    OriginCorrupt,
    Request,
)
from p2pcache.core.swarm.events import (
    DialFailed,
    FetchEnded,
    LeaseGranted,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    Tick,
    TrackerDown,
    TrackerUp,
)
from tests.core.scheduler.scheduler_kit import MB, SETTINGS, Desk, of, read_all


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


def of_three(runs: int) -> Desk:
    """A node that is connected to two others; nothing was read yet."""
    desk = Desk(runs=runs)
    desk.do(Members((1, 2, 3)))
    desk.up()
    for node in (2, 3):
        desk.do(PeerJoined(node, 0))
    return desk


def lose_tracker(runs: int, held: int) -> Desk:
    """A node that is connected to two others and loses its tracker when the first `held` runs are at a neighbour."""
    desk = of_three(runs)
    desk.do(PeerHas(2, bitset.full(held), 0))
    desk.do(TrackerDown())
    return desk


def test_without_the_tracker_owners_read_once_its_leases_are_over() -> None:
    """After twice the time that so many reads may take."""
    desk = of_three(runs=200)
    for run in range(20):
        desk.sleep(0.1)
        for request in of(Request, desk.do(PeerHas(2, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))
    desk.do(TrackerDown())
    reads_s = PATIENCE_RATIO * FILL_A_LINK * 0.1
    assert of(Fetch, desk.sleep(reads_s - 0.2)) == []
    fetches = of(Fetch, desk.sleep(0.4))
    assert fetches
    assert read_all(desk, fetches) <= {r for r in range(20, 200) if order(r, (1, 2, 3))[0] == 1}


def test_what_was_granted_before_a_lease_of_this_node_is_left_to_its_readers() -> None:
    """A node of two had 49 reads under way when the tracker was lost, the other 15, and it counted 8 of them all.

    Only short reads had ended until then. So the other read 21 runs of 96 again.
    """
    desk = Desk(runs=96)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(12):
        desk.sleep(0.1)
        for request in of(Request, desk.do(PeerHas(2, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))
    leases = of(Fetch, desk.do(LeaseGranted(0b1111 << 56)))
    assert len(leases) == 4
    desk.do(TrackerDown())
    assert read_all(desk, leases) == {56, 57, 58, 59}
    for run in range(12, 56):
        assert of(Fetch, desk.sleep(0.1)) == [], "its reader is at it"
        desk.do(PeerHas(2, 1 << run, 0))
    own = {run for run in range(60, 96) if order(run, (1, 2))[0] == 1}
    assert read_all(desk, of(Fetch, desk.sleep(6.0))) == own


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


def test_a_tracker_that_comes_back_again_and_again_stops_no_reads() -> None:
    """It is up for a second of each ten, and each loss began the whole wait anew."""
    desk = Desk(runs=8)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    desk.sleep(15)
    fetches: list[Fetch] = []
    for _ in range(6):
        desk.do(TrackerDown())
        fetches += of(Fetch, desk.sleep(9))
        desk.up()
        desk.sleep(1)
    assert fetches


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
    for run in range(10):
        desk.sleep(0.1)
        for request in of(Request, desk.do(PeerHas(2, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))
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


def test_leases_of_a_lost_tracker_are_no_more_than_the_missing_runs() -> None:
    """The wait follows the runs that are missing, not the usual number of leases."""
    desk = of_three(runs=7)
    for run in range(5):
        desk.now += 4.0
        desk.do(PeerHas(2, 1 << run, 0))
        desk.do(RequestEnded(of(Request, desk.out)[-1].request, Outcome.DONE))
    desk.do(TrackerDown())
    assert of(Fetch, desk.sleep(8)) == []
    assert of(Fetch, desk.sleep(12))


def test_leases_of_a_lost_tracker_are_waited_for_once() -> None:
    """A pace that becomes known during the wait must not lengthen it."""
    desk = Desk(runs=24)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + 1))
    own = [run for run in range(24) if order(run, (1, 2))[0] == 1]
    read: list[int] = []
    while fetches:
        desk.now += 0.5
        fetch = fetches.pop(0)
        read.append(fetch.run)
        fetches += of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE)))
    assert read == own


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


def requests_of(fetches: list[Fetch]) -> list[list[int]]:
    """The runs of each request, which the first `Fetch` that isn't joined begins."""
    found: list[list[int]] = []
    for number, fetch in enumerate(fetches):
        if fetch.joined:
            assert fetch.fetch == fetches[number - 1].fetch + 1
            found[-1].append(fetch.run)
        else:
            found.append([fetch.run])
    return found


def quick_reader(runs: int, have: int = 0) -> tuple[Desk, list[Fetch]]:
    """A node alone whose first reads were quick, and the reads that are in flight."""
    desk = Desk(runs=runs, have=have, tracker=False)
    first = of(Fetch, desk.do(Tick()))
    assert [f.run for f in first] == list(range(SETTINGS.origin_fetches)), "of unknown speed"
    flying: list[Fetch] = []
    for fetch in first:
        desk.now += 0.001
        flying += of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE)))
    return desk, flying


def test_a_node_alone_joins_consecutive_runs_in_one_request() -> None:
    requests = requests_of(quick_reader(4000, have=1 << 12)[1])
    assert len(requests) >= SETTINGS.origin_fetches
    assert requests[0] == list(range(8, 12)), "a request is one range"
    assert requests[1] == list(range(13, 13 + JOIN_BYTES // MB))


def test_slow_reads_are_not_joined() -> None:
    """A loader that waits for the last run of a request would wait for all of it."""
    desk = Desk(runs=2000, tracker=False)
    for fetch in of(Fetch, desk.do(Tick())):
        desk.now += 1.0
        assert not any(f.joined for f in of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE))))


def test_a_request_ends_with_its_last_run_and_then_the_next_begins() -> None:
    desk, flying = quick_reader(2000)
    first = flying[: len(requests_of(flying)[0])]
    assert len(first) > 1
    for fetch in first[:-1]:
        desk.now += 0.01
        assert of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE))) == []
    more = of(Fetch, desk.do(FetchEnded(first[-1].fetch, Outcome.DONE)))
    assert len(requests_of(more)) == 1


def test_near_the_end_requests_are_shorter() -> None:
    """What is demanded next waits for a small share of what is missing only."""
    lengths = [len(runs) for runs in requests_of(quick_reader(400)[1])]
    assert 1 < lengths[0] < JOIN_BYTES // MB
    assert sum(lengths) <= 400 // JOIN_SHARE
    assert {len(runs) for runs in requests_of(quick_reader(24)[1])} == {1}


def test_a_read_that_failed_leaves_the_others_of_its_request() -> None:
    desk, flying = quick_reader(400)
    first, second = flying[:2]
    assert second.joined
    desk.do(FetchEnded(second.fetch, Outcome.UNAVAILABLE))
    desk.do(FetchEnded(first.fetch, Outcome.DONE))
    for fetch in flying[2:]:
        desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    again = of(Fetch, desk.sleep(60))
    assert second.run in {f.run for f in again}


def test_a_node_with_company_joins_nothing() -> None:
    desk = Desk(runs=2000, tracker=False)
    desk.do(PeerJoined(2, 0))
    assert not any(fetch.joined for fetch in of(Fetch, desk.sleep(60)))


@pytest.mark.parametrize(("pace_s", "most_s"), [(0.5, 16.0), (1.0, 24.0), (2.0, 42.0), (4.0, 53.0)])
def test_a_node_that_nobody_dials_reads_soon_though_its_neighbour_never_does(
    pace_s: float, most_s: float
) -> None:
    """It waited for as long as all reads may take, 112 s at two seconds a run: its pull was given up."""
    desk = Desk(runs=100, dialled=False)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(8):
        desk.sleep(pace_s)
        for request in of(Request, desk.do(PeerHas(2, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))
    desk.do(TrackerDown())
    assert of(Fetch, desk.sleep(most_s))


def test_a_lease_out_of_file_order_says_nothing_of_reads_under_way() -> None:
    """Granted for a loader of another node: 900 runs before it counted as being read, and were left for 45 s."""
    desk = Desk(runs=1000)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(60):
        desk.sleep(0.5)
        for request in of(Request, desk.do(PeerHas(2, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))
    desk.do(LeaseGranted(bitset.of((60, 63, 66, 990))))
    desk.do(TrackerDown())
    by_itself = desk.s._by_itself
    assert by_itself._under_way == FILL_A_LINK
    assert by_itself._alone_at - desk.now == pytest.approx(PATIENCE_RATIO * FILL_A_LINK * 0.5)

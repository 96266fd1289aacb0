"""A node alone reads consecutive runs in one request."""

from p2pcache.core.origin.settings import (
    JOIN_BYTES,
    JOIN_SHARE,
)
from p2pcache.core.swarm.commands import (
    Fetch,
)
from p2pcache.core.swarm.events import (
    FetchEnded,
    Outcome,
    PeerJoined,
    Tick,
)
from tests.core.scheduler.scheduler_kit import MB, SETTINGS, Desk, of


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

"""What people are told of pulls: that they run, how they ended, and that a liar is shunned or a model stopped."""

from msgspec.structs import replace

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Event, Notice, PullEnded
from p2pcache.core.membership.usage_ledger import PullEnd, Taken
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import RUNS, World, X, state

HALF = bitset.full(RUNS // 2)


def pulled(have: int, taken: tuple[int, ...], *, pulls: bool = True) -> m.SwarmState:
    return replace(state(have), pulled=pulls, taken=taken, total_bytes=3200, label="team/m:v1")


def pulls_of(tracking: TrackerState) -> int:
    return len(tracking.swarms[X].ledger.pulls) if X in tracking.swarms else 0


def test_a_pull_runs_from_the_word_to_the_word() -> None:
    world = World()
    world.announce(1, pulled(0, (0, 0, 0)))
    world.announce(2, pulled(bitset.full(RUNS), (0, 0, 0)))
    assert pulls_of(world.tracking) == 1, "who has all pulls no more, whatever it says"
    world.say(1, m.Heartbeat(swarms=(pulled(HALF, (1200, 400, 0)),)))
    pull = world.tracking.swarms[X].ledger.pulls.get(1)
    assert pull is not None
    assert pull.rate(Taken(1200, 400, 0), world.now + 4) == 400.0
    world.say(1, m.Heartbeat(swarms=(pulled(HALF, (1200, 400, 0), pulls=False),)))
    assert pulls_of(world.tracking) == 0
    assert world.told == [], "how it ended only the member knows"


def test_bytes_from_before_the_tracker_knew_the_member_are_no_traffic() -> None:
    world = World()
    world.announce(1, pulled(HALF, (1000, 600, 0)))
    world.say(1, m.Heartbeat(swarms=(pulled(HALF << 1, (1100, 600, 7)),)))
    totals = world.tracking.totals()
    assert (totals["moved_peers"], totals["moved_origin"]) == (100, 0)
    pull = world.tracking.swarms[X].ledger.pulls.get(1)
    assert pull is not None
    assert pull.before == (1000, 600, 0)
    world.say(1, m.Exit(X))
    assert world.tracking.totals()["moved_peers"] == 100, "totals never shrink"


def test_an_agent_that_restarted_counts_from_nought() -> None:
    assert Taken(30, 50, 9).since(Taken(100, 50, 0)) == (30, 0, 9)


def test_a_pull_ends_with_its_node() -> None:
    for goodbye, end in ((True, PullEnd.LEFT), (False, PullEnd.LOST)):
        world = World()
        world.announce(1, pulled(HALF, (0, 0, 0)))
        world.say(1, m.Heartbeat(swarms=(pulled(HALF, (0, 1600, 0)),)))
        world.announce(2, pulled(bitset.full(RUNS), (0, 0, 0)))
        if goodbye:
            world.say(1, m.Leaving())
        else:
            world.wait(60, alive=[2])
        [told] = world.told
        assert isinstance(told, PullEnded)
        assert (told.node, told.end, told.share, told.said.taken) == (1, end, 0.5, (0, 1600, 0))
        assert told.said.label == "team/m:v1"
        assert pulls_of(world.tracking) == 0


def test_members_tell_how_pulls_ended() -> None:
    world = World()
    world.announce(1, pulled(HALF, (0, 0, 0)))
    said = [m.EndedPull(X, "team/m:v1", code, 2.0, 3200, (1, 2, 3)) for code in (0, 7, 130)]
    unknown = m.EndedPull("", "", 5, 0.1, 0, (0, 0, 0))
    world.say(1, m.Heartbeat(ended=(*said, unknown)))
    ends = [(one.end, one.said.code, one.share) for one in world.told if isinstance(one, PullEnded)]
    assert ends == [
        (PullEnd.COMPLETE, 0, 0.5), (PullEnd.FAILED, 7, 0.5), (PullEnd.CANCELLED, 130, 0.5),
        (PullEnd.FAILED, 5, 0.0),
    ]  # fmt: skip
    world.say(1, m.Heartbeat(ended=(said[0],) * 100))
    assert len(world.told) == len(ends) + m.MAX_ENDED


def test_people_are_told_once_of_a_liar() -> None:
    world = World()
    world.announce(2, state(bitset.full(RUNS)))
    world.join(1, credit=2)
    world.say(1, m.Blame(2, X, 0))
    world.say(1, m.Blame(2, X, 1))
    assert world.told == [Notice(Event.SHUNNED, 2, X)]


def test_people_are_told_once_of_a_stopped_model() -> None:
    world = World()
    world.word = WitnessReport.WRONG
    world.join(1, credit=1)
    run = world.granted(1)[0]
    world.say(1, m.LeaseReport(X, 12345, mismatched=(run,)))
    stop = world.tracking.swarms[X].doubts.stop
    assert stop
    assert stop.run == run
    assert world.told == [Notice(Event.STOPPED, 1, X)]

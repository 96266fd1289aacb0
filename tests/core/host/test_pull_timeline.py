"""Where a pull's time went: phases, tail, rates, what was waited for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.host.pull_timeline import PHASES, Timeline
from p2pcache.core.swarm.events import Source
from p2pcache.core.swarm.snapshot import InFlight, SwarmView


def phases(report: dict[str, Any]) -> dict[str, float]:
    return {phase["phase"]: phase["seconds"] for phase in report["phases"]}


def steady(seconds: int = 10) -> Timeline:
    """100 bytes a second from two peers, after 0.5 s of preparation."""
    line = Timeline(1000.0)
    line.reached("resolve", 1000.1)
    line.reached("manifest", 1000.3)
    line.reached("local", 1000.5)
    line.expect(100 * seconds)
    for tick in range(1, 10 * seconds + 1):
        line.took(Source.PEER, 10, 1000.5 + tick / 10, node=1 + tick % 2)
        line.waited("peers", 0.1)
    line.finished(1000.5 + seconds)
    return line


def test_phases_follow_each_other_and_add_up() -> None:
    line = steady()
    line.reached("flush", 1010.8)
    line.reached("publish", 1011.0)
    report: Any = line.report(2000.0)
    found = phases(report)
    assert list(found) == list(PHASES)
    assert report["seconds"] == 11.0 == pytest.approx(sum(found.values()))
    assert found["first_byte"] == pytest.approx(0.1)
    assert found["tail"] == pytest.approx(0.5)  # a twentieth at a steady pace
    assert report["longest"] == "swarm"
    assert report["rate"] == 100
    assert report["eta_node"] > 0.97
    assert report["waited"] == {"peers": 10.0}
    assert report["peers_count"] == 2
    assert sum(peer["bytes"] for peer in report["peers"]) == 1000


def test_a_straggler_shows_in_tail_and_eta() -> None:
    line = Timeline(0.0)
    line.expect(1000)
    for tick in range(1, 96):
        line.took(Source.PEER, 10, tick / 10, node=1)
    line.took(Source.ORIGIN, 50, 30.0)
    line.finished(30.0)
    report: Any = line.report(30.0)
    assert phases(report)["tail"] == pytest.approx(20.5)
    assert report["longest"] == "tail"
    assert report["eta_node"] == pytest.approx(1000 / 100 / 30, abs=0.05)


def test_a_pull_that_runs_reports_its_phases_so_far() -> None:
    line = Timeline(5.0)
    assert phases(line.report(7.0)) == {"resolve": 2.0}
    line.reached("resolve", 7.0)
    assert phases(line.report(8.0)) == {"resolve": 2.0, "manifest": 1.0}
    line.reached("manifest", 8.0)
    line.reached("local", 8.0)
    line.expect(100)
    line.took(Source.ORIGIN, 50, 9.0)
    report: Any = line.report(11.0)
    assert phases(report)["swarm"] == 2.0
    assert report["eta_node"] == pytest.approx(1 / 3, abs=0.001)  # a second's worth in three


def test_a_pull_with_nothing_to_fetch_has_no_swarm_phase() -> None:
    line = Timeline(0.0)
    line.reached("resolve", 1.0)
    line.reached("manifest", 2.0)
    line.took(Source.LOCAL, 100, 2.5)
    line.reached("local", 3.0)
    line.expect(0)
    line.finished(3.0)
    line.reached("flush", 3.5)
    line.reached("publish", 4.0)
    report: Any = line.report(9.0)
    assert list(phases(report)) == ["resolve", "manifest", "local", "flush", "publish"]
    assert report["seconds"] == 4.0
    assert report["rate"] == 0
    assert report["eta_node"] is None


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10**12)), max_size=60))
def test_the_report_is_consistent_for_any_events(steps: list[tuple[float, int]]) -> None:
    line, now = Timeline(0.0), 0.0
    line.expect(sum(n for _, n in steps) // 2)
    for pause, nbytes in steps:
        now += pause
        line.took(Source.PEER, nbytes, now, node=nbytes % 20)
        report: Any = line.report(now)
        assert sum(phases(report).values()) == pytest.approx(report["seconds"], abs=0.01)
        assert report["eta_node"] is None or 0 <= report["eta_node"] <= 1
        assert len(report["peers"]) <= 8


def test_the_runs_that_hold_a_pull_up() -> None:
    view = SwarmView(
        0b1111, 0b0011, "peers", (), (InFlight(1, 9.0, 5), InFlight(0, 2.0, 5)), (InFlight(2, 1.0),),
        (), tracker_up=True, alone=False,
    )  # fmt: skip
    assert view.stuck(3) == [0, 1, 2]  # the first gap, then what is in flight for longest
    assert view.stuck(9) == [0, 1, 2, 3]
    assert view.stuck(1) == [0]

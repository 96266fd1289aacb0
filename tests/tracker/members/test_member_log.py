"""What operators are told of members and strangers, and how little of it fits into a log."""

import logging

import pytest

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import NotAllowed, RemoteProtocolError
from p2pcache.ids import format_node
from p2pcache.tracker.members import member_log
from p2pcache.tracker.members.member_log import MemberLog

DIGEST = "ab" * 32
DENIED = NotAllowed("no member of this cluster")
BURST = int(member_log.LINES_EACH.burst)


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


def tracking(*nodes: int) -> TrackerState:
    state = TrackerState(epoch=1, members=MemberSettings(), leases=LeaseSettings(), origin="")
    for node in nodes:
        state.handle(node, m.Announce(f"h{node}:1", "1", name=f"host-{node}"), 0.0)
    return state


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger=member_log.__name__)
    return caplog


def levels(lines: pytest.LogCaptureFixture) -> list[int]:
    found = [record.levelno for record in lines.records]
    lines.clear()
    return found


def test_one_address_gets_few_warnings_and_others_keep_theirs(
    lines: pytest.LogCaptureFixture,
) -> None:
    log = MemberLog(tracking(), Clock())
    for _ in range(BURST + 2):
        log.on_refusal("10.0.0.1", DENIED)
    assert levels(lines) == [logging.WARNING] * BURST + [logging.DEBUG] * 2
    log.on_refusal("10.0.0.2", DENIED)
    assert levels(lines) == [logging.WARNING]
    log.on_refusal("10.0.0.3", TimeoutError())
    assert levels(lines) == [logging.DEBUG], "whoever only gives up isn't worth a warning"
    assert log.refused == BURST + 4


def test_strangers_use_up_no_line_of_members(lines: pytest.LogCaptureFixture) -> None:
    log = MemberLog(tracking(7), Clock())
    for number in range(200):
        log.on_refusal(f"10.0.{number}.1", DENIED)
    assert levels(lines).count(logging.WARNING) == int(member_log.LINES.burst)
    log.on_dropped(7, RemoteProtocolError("it said nonsense"))
    assert levels(lines) == [logging.WARNING]


def test_twins_are_warned_of_for_a_while_and_not_without_end(
    lines: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = MemberLog(tracking(), clock)
    for node in range(member_log.MOST_TWINS + 3):
        log.on_twin(node, f"in{node}:1", f"out{node}:1")
    log.on_twin(5, "in5:1", "moved:1")  # the last now
    found = log.warnings()
    assert len(found) == member_log.MOST_TWINS
    assert not any("in2:1" in text for text in found), "the oldest made room"
    assert "moved:1" in found[-1]
    assert f"the same node id {format_node(5)}" in found[-1]
    assert sum("in5:1" in text for text in found) == 1
    clock.time += member_log.TWIN_S - 1
    log.on_twin(99, "in99:1", "out99:1")
    clock.time += 1
    (left,) = log.warnings()
    assert "in99:1" in left


def test_what_is_not_written_of_comings_and_goings_is_counted(
    lines: pytest.LogCaptureFixture,
) -> None:
    state = tracking(7, 8)
    log = MemberLog(state, Clock())
    most = int(member_log.MOVES_EACH.burst)
    for _ in range(most + 4):
        log.on_notice(Notice(Event.JOINED, 7))
    assert levels(lines) == [logging.INFO] * most + [logging.DEBUG] * 4
    log.on_notice(Notice(Event.JOINED, 8))
    assert lines.messages == [
        f"node {format_node(8)} (host-8) at h8:1 joined (4 more lines like it weren't written)"
    ]
    state.handle(8, m.Leaving(), 1.0)
    log.on_notice(Notice(Event.LEFT, 8))
    assert lines.messages[-1] == f"node {format_node(8)} (host-8) at h8:1 left"
    log.on_notice(Notice(Event.JOINED, 99))
    log.on_notice(Notice(Event.LEFT, 99))
    assert len(lines.messages) == 2, "nothing is known of it"


def test_a_lost_node_is_no_node_that_left(lines: pytest.LogCaptureFixture) -> None:
    state = tracking(7)
    log = MemberLog(state, Clock())
    state.on_disconnected(7, 1.0)
    state.tick(1.0 + MemberSettings().expiry_s + 1)
    log.on_notice(Notice(Event.LEFT, 7))
    assert "is lost: no sign of life" in lines.text


def test_unreached_members_are_named_while_there_are_lines(lines: pytest.LogCaptureFixture) -> None:
    state = tracking(7, 8)
    log = MemberLog(state, Clock())
    log.on_notice(Notice(Event.UNREACHED, 7))
    assert f"nobody reaches node {format_node(7)}" in lines.messages[0]
    for _ in range(BURST):
        log.on_notice(Notice(Event.UNREACHED, 7, DIGEST))
    assert f"says that it has {DIGEST[:12]} and members get nothing from it" in lines.messages[1]
    assert len(lines.messages) == BURST
    state.on_disconnected(8, 1.0)
    for gone in (8, 99):
        log.on_notice(Notice(Event.UNREACHED, gone))
    assert len(lines.messages) == BURST, "it has left, which explains it"


def test_remarks_are_named_by_model(lines: pytest.LogCaptureFixture) -> None:
    log = MemberLog(tracking(7), Clock())
    log.on_notice(Notice(Event.DOUBTED, 7, DIGEST, "its storage is wrong"))
    assert lines.messages == [f"model {DIGEST[:12]}, node {format_node(7)}: its storage is wrong"]

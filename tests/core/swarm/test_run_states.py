"""The state of a run moves as the transition table says."""

from enum import StrEnum
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.swarm.run_states import RunStates

CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "design" / "06-what-a-node-asks.md"
RUNS = 8
ALL = bitset.full(RUNS)
RUN_SETS = st.integers(0, ALL)


class RunState(StrEnum):
    """Where a run stands."""

    MISSING = "missing"  # not here, and nothing is under way
    REQUESTED = "requested"  # of a neighbour, or of two
    FETCHING = "fetching"  # being read from the origin
    RACING = "racing"  # requested and fetching: the first to end wins
    PROVED = "proved"  # every chunk has the digest of the manifest


class RunEvent(StrEnum):
    """What moves a run to another state."""

    REQUEST = "request"
    END_REQUEST = "request ended"  # the last one for this run
    FETCH = "fetch"
    END_FETCH = "fetch ended"
    PROVE = "set proved"
    LOSE = "set lost"


TRANSITIONS: dict[RunEvent, dict[RunState, RunState]] = {
    RunEvent.REQUEST: {
        RunState.MISSING: RunState.REQUESTED,
        RunState.REQUESTED: RunState.REQUESTED,
        RunState.FETCHING: RunState.RACING,
        RunState.RACING: RunState.RACING,
    },
    RunEvent.END_REQUEST: {
        RunState.REQUESTED: RunState.MISSING,
        RunState.RACING: RunState.FETCHING,
    },
    RunEvent.FETCH: {
        RunState.MISSING: RunState.FETCHING,
        RunState.REQUESTED: RunState.RACING,
    },
    RunEvent.END_FETCH: {
        RunState.FETCHING: RunState.MISSING,
        RunState.RACING: RunState.REQUESTED,
    },
    RunEvent.PROVE: dict.fromkeys(RunState, RunState.PROVED),
    RunEvent.LOSE: {RunState.PROVED: RunState.MISSING},
}


def state_of(states: RunStates, run: int) -> RunState:
    """Where one run stands."""
    if states.have >> run & 1:
        return RunState.PROVED
    requested, fetching = states.requested >> run & 1, states.fetching >> run & 1
    if requested and fetching:
        return RunState.RACING
    if requested:
        return RunState.REQUESTED
    return RunState.FETCHING if fetching else RunState.MISSING


def move(states: RunStates, event: RunEvent, runs: int) -> None:
    """Let an event happen to some runs, as the owners of requests and of reads do."""
    match event:
        case RunEvent.REQUEST:
            states.requested |= runs
        case RunEvent.END_REQUEST:
            states.requested &= ~runs
        case RunEvent.FETCH:
            states.fetching |= runs
        case RunEvent.END_FETCH:
            states.fetching &= ~runs
        case RunEvent.PROVE:
            states.set_proved(runs)
        case RunEvent.LOSE:
            states.set_lost(runs)


def all_states(states: RunStates) -> list[RunState]:
    return [state_of(states, run) for run in range(RUNS)]


def legal(states: RunStates, event: RunEvent, runs: int) -> int:
    """Those of these runs to which the event may happen in their state."""
    moves = TRANSITIONS[event]
    return bitset.of(run for run in bitset.members(runs) if state_of(states, run) in moves)


@given(st.integers(0, ALL), st.lists(st.tuples(st.sampled_from(RunEvent), RUN_SETS), max_size=40))
def test_each_event_moves_runs_as_the_table_says(
    have: int, happened: list[tuple[RunEvent, int]]
) -> None:
    states = RunStates(RUNS, have)
    for event, runs in happened:
        chosen = legal(states, event, runs)
        expected = [
            TRANSITIONS[event][state] if chosen >> run & 1 else state
            for run, state in enumerate(all_states(states))
        ]
        move(states, event, chosen)
        assert all_states(states) == expected
        states.check()


@given(RUN_SETS, RUN_SETS, RUN_SETS, RUN_SETS)
def test_flags_keep_to_their_states(have: int, urgent: int, wanted: int, proved: int) -> None:
    states = RunStates(RUNS, have)
    states.make_urgent(urgent)
    assert states.urgent == urgent & ~have
    states.check()
    states.want_only(wanted)
    assert states.urgent == urgent & ~have & wanted
    states.check()
    states.make_urgent(urgent)
    assert not states.urgent & ~states.wanted
    states.leased |= states.missing
    assert states.set_proved(proved) == proved & ~have
    assert not (states.urgent | states.leased) & states.have
    states.check()


def test_every_state_is_named_by_the_table() -> None:
    moves = [(old, new) for table in TRANSITIONS.values() for old, new in table.items()]
    for state in RunState:
        assert state in {old for old, _ in moves}
        assert state in {new for _, new in moves}


def test_a_run_in_flight_in_two_ways_is_racing_until_one_ends() -> None:
    states = RunStates(RUNS, 0)
    states.requested = states.fetching = 1
    assert state_of(states, 0) is RunState.RACING
    assert not states.free & 1
    states.requested = 0
    assert state_of(states, 0) is RunState.FETCHING
    assert states.set_proved(1) == 1
    assert states.set_lost(1) == 1
    assert state_of(states, 0) is RunState.MISSING


def tables(text: str) -> list[list[str]]:
    """The cells of the rows below each header that begins with `event`, in order."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    start = next(i for i, row in enumerate(rows) if row[0] == "event")
    assert rows[start][1:] == [state.value for state in RunState]
    return [row[1:] for row in rows[start + 2 : start + 2 + len(RunEvent)]]


def test_the_chapter_shows_the_table() -> None:
    expected = [
        [TRANSITIONS[event].get(state, "") for state in RunState] for event in RunEvent
    ]  # fmt: skip
    assert tables(CHAPTER.read_text()) == expected

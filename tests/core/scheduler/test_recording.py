"""Recordings: every event and every head can be written and read again."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.scheduler import recording
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.errors import UsageError
from p2pcache.io.notes.recorder import settings_of

BITS = st.integers(0, 1 << 20_000)  # a large model's sets: no decimal of Python's is as long
NODES = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 60)
EVENTS = st.one_of(
    st.builds(e.PeerJoined, NODES, BITS, SECONDS), st.builds(e.PeerLeft, NODES),
    st.builds(e.PeerHas, NODES, BITS, SMALL), st.builds(e.RequestEnded, SMALL, st.sampled_from(e.Outcome)),
    st.builds(e.FetchEnded, SMALL, st.sampled_from(e.Outcome)),
    st.builds(e.RunsProved, BITS, st.sampled_from(e.Source)), st.builds(e.RunsLost, BITS),
    st.builds(e.LeaseGranted, BITS), st.builds(e.LeaseRevoked, BITS),
    st.builds(e.TrackerUp, NODES), st.builds(e.TrackerDown), st.builds(e.DialFailed, NODES),
    st.builds(e.Members, st.lists(NODES).map(tuple)), st.builds(e.Urgent, BITS),
    st.builds(e.Reachable), st.builds(e.Wanted, st.one_of(st.just(c.ALL), BITS)), st.builds(e.Tick),
)  # fmt: skip


@given(event=EVENTS, now=st.floats(0, 1e9))
def test_every_event_comes_back(event: e.Event, now: float) -> None:
    line = recording.step_line(now, event, [])
    assert line.count(b"\n") == 1
    assert recording.read_step(line) == (now, event, 0)


def test_the_checksum_tells_answers_apart() -> None:
    said: list[list[c.Command]] = [
        [], [c.Request(1, 2, 3)], [c.Request(1, 2, 4)], [c.Request(1, 2, 3), c.Cancel(1)],
        [c.Cancel(1), c.Request(1, 2, 3)], [c.Announce(1 << 20_000)], [c.Announce(1 << 20_001)],
    ]  # fmt: skip
    assert len({recording.checksum(commands) for commands in said}) == len(said)


def make_head(**changes: object) -> recording.Head:
    values: dict[str, Any] = {
        "version": recording.VERSION, "release": "0", "digest": "ab" * 32, "node": "f",
        "run_bytes": (10,) * 8, "have": "3", "settings": settings_of(SwarmSettings()), "seed": 7,
        "tracker": False, "now": 100.0,
    }  # fmt: skip
    return recording.Head(**(values | changes))


def test_a_head_makes_the_same_scheduler() -> None:
    head = recording.read_head(recording.head_line(make_head()))
    one, two = head.scheduler(), make_head().scheduler()
    dice = random.Random(1)
    assert one.have == 3
    events: list[e.Event] = [e.PeerJoined(node, dice.getrandbits(8)) for node in range(1, 6)]
    for number, event in enumerate([*events, e.Tick()]):
        now = 100.0 + number / 10
        assert one.handle(event, now) == two.handle(event, now)


def test_strange_files_are_refused() -> None:
    for line in (b"", b"{}\n", b"[1, 2]\n", b"\xff\n"):
        with pytest.raises(UsageError, match="not a recording"):
            recording.read_head(line)
    with pytest.raises(UsageError, match="version 9"):
        recording.read_head(recording.head_line(make_head(version=9)))
    with pytest.raises(UsageError, match="aren't ours"):
        make_head(settings={"no_such_knob": 1.0}).scheduler()
    for line in (b"[0.0]\n", b'[0.0, "Nonsense", {}, 0]\n', b'[0.0, "Tick", [], 0]\n',
                 b'[0.0, "PeerLeft", {}, 0]\n', b'[0.0, "PeerLeft", {"peer": "zz"}, 0]\n',
                 b'[0.0, "FetchEnded", {"fetch": 1, "outcome": 99}, 0]\n'):  # fmt: skip
        with pytest.raises(UsageError, match="not a line"):
            recording.read_step(line)

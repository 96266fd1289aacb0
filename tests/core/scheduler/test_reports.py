"""When have batches are due, and what they hold."""

import math

from p2pcache.core.peers.settings import BATCH_BYTES, HAVE_WAIT_RUNS, HAVE_WAIT_S
from p2pcache.core.scheduler.reports import HaveBatch
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings(have_interval_s=0.02)


def sent(batch: HaveBatch, now: float) -> list[int]:
    return [batch.take_batch(now).runs] if now >= batch.due_at else []


def test_neighbours_hear_at_once_and_then_in_batches() -> None:
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.add(0b1, 0, 0.0, 1.0)
    assert sent(batch, 1.0) == [0b1]
    batch.add(0b10, 0, 0.0, 1.019)
    batch.add(0b100, 0, 0.0, 1.019)
    assert sent(batch, 1.019) == []
    assert batch.due_at == 1.02
    assert sent(batch, 1.02) == [0b110]
    assert batch.due_at == math.inf


def test_a_batch_of_many_bytes_goes_at_once() -> None:
    """At 100 Gbit/s a node has sixty runs of 4 MiB by the time for the next one."""
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.add(0b1, 0, 0.0, 1.0)
    assert sent(batch, 1.0) == [0b1]
    batch.add(0b1110, 0, 0.0, 1.001)
    assert sent(batch, 1.001) == []
    batch.add(0b10000, 0, 0.0, 1.001)
    assert sent(batch, 1.001) == [0b11110]


def test_a_lost_run_is_not_told() -> None:
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.add(0b11, 0, 0.0, 1.0)
    batch.runs &= ~0b1
    assert sent(batch, 1.0) == [0b10]
    batch.add(0b100, 0, 0.0, 1.0)
    batch.runs &= ~0b100
    assert batch.due_at == math.inf


def test_what_several_neighbours_have_waits_for_a_rarer_run_or_for_some_runs_time() -> None:
    batch = HaveBatch(SETTINGS, [1] * 9)
    pace_s = 0.1
    batch.add(0b1, 0b1, pace_s, 1.0)
    batch.add(0b10, 0b11, pace_s, 1.1)
    assert batch.due_at == 1.0 + HAVE_WAIT_RUNS * pace_s
    batch.add(0b100, 0b1, pace_s, 1.2)
    assert sent(batch, 1.2) == [0b111], "a rare one"
    batch.add(0b1000, 0b1000, 60.0, 2.0)
    assert batch.due_at == 2.0 + HAVE_WAIT_S
    batch.add(0b10000, 0b10000, 0.0, 2.0)
    assert sent(batch, 2.0) == [0b11000], "the pace isn't known"

"""When have batches are due, and what they hold."""

import math

from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.peers.settings import BATCH_BYTES
from p2pcache.core.scheduler.reports import HaveBatch
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings(have_interval_s=0.02)


def sent(batch: HaveBatch, now: float) -> list[int]:
    return [batch.take_batch(now, 0.0, Rarity()).runs] if now >= batch.due_at else []


def test_neighbours_hear_at_once_and_then_in_batches() -> None:
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.runs |= 0b1
    assert sent(batch, 1.0) == [0b1]
    batch.runs |= 0b10
    batch.runs |= 0b100
    assert sent(batch, 1.019) == []
    assert batch.due_at == 1.02
    assert sent(batch, 1.02) == [0b110]
    assert batch.due_at == math.inf


def test_a_batch_of_many_bytes_goes_at_once() -> None:
    """At 100 Gbit/s a node has sixty runs of 4 MiB by the time for the next one."""
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.runs |= 0b1
    assert sent(batch, 1.0) == [0b1]
    batch.runs |= 0b1110
    assert sent(batch, 1.001) == []
    batch.runs |= 0b10000
    assert sent(batch, 1.001) == [0b11110]


def test_a_lost_run_is_not_told() -> None:
    batch = HaveBatch(SETTINGS, [BATCH_BYTES // 4] * 9)
    batch.runs |= 0b11
    batch.runs &= ~0b1
    assert sent(batch, 1.0) == [0b10]
    batch.runs |= 0b100
    batch.runs &= ~0b100
    assert batch.due_at == math.inf

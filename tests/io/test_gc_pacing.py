"""Cycles are collected at our own times: the young often, everything once enough has ended."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from p2pcache.io.gc_pacing import LEAST_ENDED, GcPacing


class Knot:
    """An object in a cycle of its own."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


async def test_the_young_go_at_the_next_look() -> None:
    gc.disable()
    garbage = GcPacing(live=lambda: 0, ended=lambda: 0)
    ghost = weakref.ref(Knot())
    assert ghost() is not None
    await garbage.collect_due()
    assert ghost() is None
    assert garbage.full == 0


async def test_the_old_go_when_enough_connections_have_ended() -> None:
    gc.disable()
    ended = 0
    garbage = GcPacing(live=lambda: 4 * LEAST_ENDED, ended=lambda: ended)
    knot = Knot()
    await garbage.collect_due()  # it has become old
    ghost = weakref.ref(knot)
    del knot
    ended = LEAST_ENDED - 1
    await garbage.collect_due()
    assert ghost() is not None
    ended = LEAST_ENDED
    await garbage.collect_due()
    assert ghost() is None
    assert garbage.full == 1
    await garbage.collect_due()
    assert garbage.full == 1
